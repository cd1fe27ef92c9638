package foreign

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/internal/harness/gittest"
)

// ours returns the environment of a program that uses one of the clients that are generated from the OpenAPI document.
func ours(t *testing.T, h *home) []string {
	t.Helper()
	path := filepath.Dir(binary) + string(os.PathListSeparator) + os.Getenv("PATH")
	return append(gittest.Env(), "PATH="+path, "ARTIFACTFS_SERVER="+h.url, "ARTIFACTFS_SERVER_TOKEN="+h.admin,
		"ARTIFACTFS_STATE="+t.TempDir(), "PYTHONDONTWRITEBYTECODE=1")
}

// The clients call every operation of the document, and understand pages, streams and errors.
func TestGeneratedClients(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ name, interpreter, file string }{
		{"JavaScript", "node", "javascript_client.mjs"}, {"Python", "python3", "python_client.py"},
	} {
		t.Run(x.name, func(t *testing.T) {
			h := serve(t)
			interpreter := program(t, x.interpreter)
			out, err := output(t, clients(t), ours(t, h), interpreter, source(t, x.file))
			if err != nil || !strings.HasSuffix(out, "every operation was called") {
				t.Errorf("%s: %v\n%s", x.file, err, out)
			}
		})
	}
}

func clients(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../clients")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// The examples open a session, mount it, commit and fork.
func TestExamples(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		skip(t, "mounts need root here")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		skip(t, "%v", err)
	}
	for _, x := range []struct{ name, interpreter, file string }{
		{"JavaScript", "node", "typescript/example.mjs"}, {"Python", "python3", "python/example.py"},
	} {
		t.Run(x.name, func(t *testing.T) {
			h := serve(t)
			interpreter := program(t, x.interpreter)
			env := ours(t, h)
			t.Cleanup(func() {
				if out, err := output(t, "", env, binary, "unmount", "--all"); err != nil {
					t.Logf("unmount: %v: %s", err, out)
				}
			})
			out, err := output(t, t.TempDir(), env, interpreter, filepath.Join(clients(t), x.file))
			if err != nil || !strings.Contains(out, "README.md is\n# An example\nWritten in a mount.") {
				t.Errorf("%s: %v\n%s", x.file, err, out)
			}
		})
	}
}

// The types of the client for TypeScript are valid, and find mistakes.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	node := program(t, "node")
	compiler := filepath.Join(npm(t, "typescript"), "node_modules/typescript/bin/tsc")
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "client"), os.DirFS(filepath.Join(clients(t), "typescript"))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(source(t, "types.ts"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "types.ts"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := output(t, dir, os.Environ(), node, compiler, "--noEmit", "--strict", "--target", "es2022", "--module", "esnext",
		"--moduleResolution", "bundler", "--lib", "es2022,dom,dom.iterable", "types.ts")
	if err != nil {
		t.Errorf("tsc: %v\n%s", err, out)
	}
}
