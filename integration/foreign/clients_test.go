package foreign

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/openapi"
	"github.com/artifactfs/artifactfs/server/openapi/openapitest"
)

// checked returns a server behind a proxy that compares requests and answers, except those of git, with the OpenAPI
// document. The first request for a list of webhooks gets status 503, so the client must repeat it.
func checked(t *testing.T, h *home) (*home, *openapitest.Checker) {
	t.Helper()
	target, err := url.Parse(h.url)
	if err != nil {
		t.Fatal(err)
	}
	// The proxy passes on the header Host, so that the URLs of repositories are those of the proxy.
	proxy := httputil.NewSingleHostReverseProxy(target)
	checker := openapitest.New(t, proxy)
	var busy atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/git/"):
			proxy.ServeHTTP(w, r)
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/webhooks") && !busy.Swap(true):
			w.Header().Set("Retry-After", "1")
			http.Error(w, "busy", http.StatusServiceUnavailable)
		default:
			checker.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return &home{url: s.URL, admin: h.admin}, checker
}

// unproved are operations that cannot succeed in this test: imports need another server with https, and retries need a
// failed delivery.
var unproved = []string{
	"artifacts_repos_import", "artifactfs_import_get", "artifactfs_import_refresh",
	"artifactfs_account_webhooks_dead_retry", "artifactfs_namespace_webhooks_dead_retry",
}

// ours returns the environment of a program that uses a generated client.
func ours(t *testing.T, h *home) []string {
	t.Helper()
	path := filepath.Dir(binary) + string(os.PathListSeparator) + os.Getenv("PATH")
	return append(gittest.Env(), "PATH="+path, "ARTIFACTFS_SERVER="+h.url, "ARTIFACTFS_SERVER_TOKEN="+h.admin,
		"TMPDIR="+t.TempDir(), "PYTHONDONTWRITEBYTECODE=1")
}

// The generated clients call every operation of the document, and read pages, streams and errors correctly.
func TestGeneratedClients(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ name, interpreter, file string }{
		{"JavaScript", "node", "javascript_client.mjs"}, {"Python", "python3", "python_client.py"},
	} {
		t.Run(x.name, func(t *testing.T) {
			h, checker := checked(t, serve(t))
			interpreter := program(t, x.interpreter)
			env := append(ours(t, h), "MAKE_SESSION="+source(t, "session.sh"))
			out, err := output(t, clients(t), env, interpreter, source(t, x.file))
			if err != nil || !strings.HasSuffix(out, "every operation was called") {
				t.Errorf("%s: %v\n%s", x.file, err, out)
			}
			if missing := checker.Missing(""); !slices.Equal(missing, unproved) {
				t.Errorf("operations that have not succeeded: %v, want %v", missing, unproved)
			}
		})
	}
}

func clients(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../server/clients")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// The examples of the generated clients create a repository, mount it, commit and fork.
func TestExamples(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		gittest.Skip(t, "mounts need root here")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		gittest.Skip(t, "%v", err)
	}
	for _, x := range []struct{ name, interpreter, file string }{
		{"JavaScript", "node", "typescript/example.mjs"}, {"Python", "python3", "python/example.py"},
	} {
		t.Run(x.name, func(t *testing.T) {
			h := serve(t)
			interpreter := program(t, x.interpreter)
			env := ours(t, h)
			state := t.TempDir()
			start(t, env, "daemon", "--state", state)
			await.Until(t, "the daemon listens", func() bool {
				_, err := os.Stat(filepath.Join(state, "run/daemon.sock"))
				return err == nil
			})
			env = append(env, "ARTIFACTFS_STATE="+state)
			out, err := output(t, t.TempDir(), env, interpreter, filepath.Join(clients(t), x.file))
			if err != nil || !strings.Contains(out, "README.md is\n# An example\nWritten in a mount.") {
				t.Errorf("%s: %v\n%s", x.file, err, out)
			}
		})
	}
}

// The TypeScript client passes the type checker, and wrong uses of it do not.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	node := program(t, "node")
	compiler := filepath.Join(npm(t, "openapi"), "node_modules/typescript/bin/tsc")
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
	out, err := output(t, dir, os.Environ(), node, compiler, "--noEmit", "--strict", "--target", "es2022",
		"--module", "esnext",
		"--moduleResolution", "bundler", "--lib", "es2022,dom,dom.iterable", "types.ts")
	if err != nil {
		t.Errorf("tsc: %v\n%s", err, out)
	}
}

// A validator and a generator of clients that are not part of this project accept the document.
func TestDocumentForOthers(t *testing.T) {
	t.Parallel()
	node := program(t, "node")
	modules := filepath.Join(npm(t, "openapi"), "node_modules")
	h := serve(t)
	document := filepath.Join(t.TempDir(), "openapi.json")
	answer, err := http.Get(h.url + openapi.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(document, text, 0o600); err != nil {
		t.Fatal(err)
	}
	validator := filepath.Join(modules, "@seriousme/openapi-schema-validator/bin/validate-api-cli.js")
	if out, err := output(t, "", os.Environ(), node, validator, document); err != nil ||
		!strings.Contains(out, `"valid": true`) {
		t.Errorf("openapi-schema-validator: %v\n%s", err, out)
	}
	generator := filepath.Join(modules, "openapi-typescript/bin/cli.js")
	if out, err := output(t, "", os.Environ(), node, generator, document, "-o", document+".d.ts"); err != nil {
		t.Errorf("openapi-typescript: %v\n%s", err, out)
	}
}
