package foreign

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

// repository is a repository of a server and the directory with the clones of one git.
type repository struct {
	*testing.T
	home *home
	git  string // path of the program
	dir  string
	made client.Created
	env  []string
}

// features are tests of stock git that other clients cannot pass. Each begins with an empty repository.
var features = []struct {
	name string
	run  func(r *repository)
}{
	{"empty", empty},
	{"partial clones", partial},
	{"shallow clones", shallow},
	{"atomic", atomicPush},
	{"push options", pushOptions},
	{"refs of any kind", anyRefs},
	{"large pushes", largePush},
	{"read-only", readOnly},
	{"SHA-256", sha256Repository},
	{"spellings of credentials", spellings},
}

// Features of stock git in two versions.
func TestGitFeatures(t *testing.T) {
	t.Parallel()
	h := serve(t)
	for name, find := range gits() {
		t.Run(name, func(t *testing.T) {
			git := find(t)
			for _, f := range features {
				t.Run(f.name, func(t *testing.T) {
					r := &repository{T: t, home: h, git: git, dir: t.TempDir(), env: gittest.Env()}
					r.made = h.create(t, strings.ReplaceAll(f.name+" "+name, " ", "-"))
					f.run(r)
				})
			}
		})
	}
}

// remote returns the URL of the repository for git, with a token as the password.
func (r *repository) remote(c client.Created) string {
	return strings.Replace(c.Remote, "://", "://x:"+secret(c.Token)+"@", 1)
}

// try runs git in a directory below the test's directory.
func (r *repository) try(dir string, args ...string) (string, error) {
	return output(r.T, filepath.Join(r.dir, dir), r.env, r.git, args...)
}

func (r *repository) must(dir string, args ...string) string {
	r.Helper()
	out, err := r.try(dir, args...)
	if err != nil {
		r.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// seed makes a directory with commits and pushes them to main.
func (r *repository) seed(commits int) {
	r.Helper()
	r.must("", "clone", "-q", r.remote(r.made), "seed")
	for i := range commits {
		r.commit("seed", "file", fmt.Sprintf("version %d\n", i))
	}
	r.must("seed", "push", "-q", "origin", "HEAD:refs/heads/main")
}

func (r *repository) commit(dir, name, text string) {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, dir, name), []byte(text), 0o644); err != nil {
		r.Fatal(err)
	}
	r.must(dir, "add", name)
	r.must(dir, "commit", "-q", "-m", "change "+name)
}

// same reports an error unless got is want.
func (r *repository) same(what, got, want string) {
	r.Helper()
	if got != want {
		r.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// A clone of an empty repository has the default branch of the repository.
func empty(r *repository) {
	c, err := r.home.client.CreateRepo(r.Context(), "foreign",
		client.CreateRepo{Name: r.made.Name + "-trunk", DefaultBranch: "trunk"})
	if err != nil {
		r.Fatal(err)
	}
	r.must("", "clone", "-q", r.remote(c), "work")
	r.same("branch of a clone of an empty repository", r.must("work", "symbolic-ref", "--short", "HEAD"), "trunk")
	r.commit("work", "a", "a\n")
	r.must("work", "push", "-q")
	r.must("", "clone", "-q", r.remote(c), "again")
	r.same("branch of a clone", r.must("again", "symbolic-ref", "--short", "HEAD"), "trunk")
}

// Clones without blobs, and clones without trees, fetch the missing objects when git reads them.
func partial(r *repository) {
	r.seed(20)
	r.must("", "clone", "-q", "--bare", "--filter=blob:none", r.remote(r.made), "blobless")
	missing := r.must("blobless", "rev-list", "--objects", "--missing=print", "--all")
	r.same("missing blobs of a clone without blobs", fmt.Sprint(strings.Count(missing, "?")), "20")
	// git 2.55 prints warnings ("redirecting to", with the URL without the token) before the contents.
	read := func(dir string, args ...string) string {
		out := r.must(dir, args...)
		return out[strings.LastIndexByte(out, '\n')+1:]
	}
	r.same("a blob that is fetched when it is read", read("blobless", "cat-file", "blob", "main~5:file"), "version 14")
	r.must("", "clone", "-q", "--filter=tree:0", r.remote(r.made), "treeless")
	r.same("a file of a clone without trees", read("treeless", "show", "HEAD~3:file"), "version 16")
	r.must("", "clone", "-q", "--filter=blob:limit=5", "--no-checkout", r.remote(r.made), "limited")
}

// Clones that are shallow by depth or by time can be deepened, and made complete.
func shallow(r *repository) {
	r.seed(10)
	r.must("", "clone", "-q", "--depth=2", r.remote(r.made), "work")
	r.same("commits of a clone of depth 2", r.must("work", "rev-list", "--count", "HEAD"), "2")
	r.must("work", "fetch", "-q", "--deepen=3")
	r.same("commits after --deepen=3", r.must("work", "rev-list", "--count", "HEAD"), "5")
	r.commit("work", "new", "pushed from a shallow clone\n")
	r.must("work", "push", "-q")
	r.must("work", "fetch", "-q", "--unshallow")
	r.same("commits after --unshallow", r.must("work", "rev-list", "--count", "HEAD"), "11")
	r.must("", "clone", "-q", "--shallow-since=2000-01-01", r.remote(r.made), "since")
	r.same("commits since 2000", r.must("since", "rev-list", "--count", "HEAD"), "11")
	id := r.must("work", "rev-parse", "HEAD~4")
	r.must("", "init", "-q", "one")
	r.must("one", "fetch", "-q", "--depth=1", r.remote(r.made), id)
	r.same("fetch of one commit by its id", r.must("one", "rev-parse", "FETCH_HEAD"), id)
}

// An atomic push changes no ref if one of them is refused.
func atomicPush(r *repository) {
	r.seed(3)
	before := r.must("seed", "ls-remote", "origin")
	r.must("seed", "branch", "new")
	r.must("seed", "checkout", "-q", "-b", "old", "HEAD~1")
	r.commit("seed", "other", "other\n")
	out, err := r.try("seed", "push", "--atomic", "origin", "new", "old:main")
	if err == nil {
		r.Errorf("atomic push of a ref that is not a fast-forward succeeded: %s", out)
	}
	token := r.home.token(r.T, client.CreateToken{Repo: r.made.Name,
		Refs: []client.RefRule{{Glob: "refs/heads/allowed/**"}}})
	url := strings.Replace(r.made.Remote, "://", "://x:"+secret(token.Plaintext)+"@", 1)
	if out, err := r.try("seed", "push", "--atomic", url, "new:allowed/a", "new:denied"); err == nil ||
		!strings.Contains(out, "denied") {
		r.Errorf("atomic push of a ref that the token may not change: %v: %s", err, out)
	}
	r.same("refs after refused atomic pushes", r.must("seed", "ls-remote", "origin"), before)
	if _, err := r.try("seed", "push", url, "new:allowed/a", "new:denied"); err == nil {
		r.Error("push of a ref that the token may not change succeeded")
	}
	if got := r.must("seed", "ls-remote", "origin", "refs/heads/allowed/a"); got == "" {
		r.Error("a push that is not atomic did not change the ref that the token may change")
	}
	r.must("seed", "push", "-q", "--atomic", "origin", "new:one", "new:two")
}

func pushOptions(r *repository) {
	r.seed(1)
	r.commit("seed", "file", "with an option\n")
	r.must("seed", "push", "-q", "-o", "ci.skip", "origin", "HEAD:main")
}

// Notes, and refs outside of branches and tags, are pushed, fetched and deleted. Tags move.
func anyRefs(r *repository) {
	r.seed(2)
	r.must("seed", "notes", "--ref=agent", "add", "-m", "a note")
	r.must("seed", "tag", "-a", "-m", "v1", "v1")
	r.must("seed", "push", "-q", "origin", "refs/notes/agent", "HEAD:refs/afs/session/one", "HEAD:refs/x/y", "v1")
	r.must("", "clone", "-q", "--mirror", r.remote(r.made), "mirror")
	r.same("note in a mirror", r.must("mirror", "notes", "--ref=agent", "show", "main"), "a note")
	r.must("seed", "tag", "-f", "-a", "-m", "v1 again", "v1", "HEAD~1")
	if _, err := r.try("seed", "push", "origin", "v1"); err == nil {
		r.Error("a tag moved without --force")
	}
	r.must("seed", "push", "-q", "--force", "origin", "v1")
	r.must("seed", "push", "-q", "origin", ":refs/x/y")
	r.must("mirror", "remote", "update", "--prune")
	if refs := r.must("mirror", "for-each-ref", "--format=%(refname)"); strings.Contains(refs, "refs/x/y") {
		r.Errorf("a deleted ref is in the mirror:\n%s", refs)
	}
	r.same("tag of a mirror", r.must("mirror", "rev-parse", "v1^{commit}"), r.must("seed", "rev-parse", "HEAD~1"))
}

// A push that is larger than git's buffer is sent in chunks, after a request that asks whether it is authorized.
func largePush(r *repository) {
	r.seed(1)
	for i := range 4 {
		// The contents hardly compress, and are the same in each run.
		var b strings.Builder
		for n := range 20000 {
			fmt.Fprintf(&b, "%s\n",
				base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%d %x", i, uint64(n+i)*0x9e3779b97f4a7c15)))
		}
		r.commit("seed", fmt.Sprint("large", i), b.String())
	}
	r.must("seed", "-c", "http.postBuffer=65536", "push", "-q", "origin", "HEAD:main")
	r.must("", "clone", "-q", r.remote(r.made), "work")
	r.same("commit of a clone", r.must("work", "rev-parse", "HEAD"), r.must("seed", "rev-parse", "HEAD"))
	r.must("work", "fsck", "--full", "--strict")
}

func readOnly(r *repository) {
	c, err := r.home.client.CreateRepo(r.Context(), "foreign",
		client.CreateRepo{Name: r.made.Name + "-frozen", ReadOnly: true})
	if err != nil {
		r.Fatal(err)
	}
	r.must("", "clone", "-q", r.remote(c), "work")
	r.commit("work", "a", "a\n")
	out, err := r.try("work", "push", "origin", "HEAD:main")
	if err == nil || !strings.Contains(out, "403") && !strings.Contains(out, "read-only") {
		r.Errorf("push to a read-only repository: %v: %s", err, out)
	}
	r.Log(out)
}

func sha256Repository(r *repository) {
	c, err := r.home.client.CreateRepo(r.Context(), "foreign",
		client.CreateRepo{Name: r.made.Name + "-sha256", ObjectFormat: "sha256"})
	if err != nil {
		r.Fatal(err)
	}
	r.must("", "init", "-q", "-b", "main", "--object-format=sha256", "work")
	r.commit("work", "a", "a\n")
	r.must("work", "remote", "add", "origin", r.remote(c))
	r.must("work", "push", "-q", "origin", "main")
	r.must("", "clone", "-q", r.remote(c), "again")
	id := r.must("again", "rev-parse", "HEAD")
	r.same("commit of a clone", id, r.must("work", "rev-parse", "HEAD"))
	if log, err := r.home.client.Log(r.Context(), "foreign", c.Name, "main", 0, 0); err != nil || len(log) != 1 ||
		log[0].Hash != id {
		r.Errorf("log of a SHA-256 repository: %v, %v", log, err)
	}
}

// A token is accepted as the password of any user and as a bearer token, with and without its time of expiry,
// percent-encoded or not.
func spellings(r *repository) {
	r.seed(1)
	full, bare := r.made.Token, secret(r.made.Token)
	header := func(h string) []string { return []string{"-c", "http.extraHeader=Authorization: " + h} }
	basicHeader := func(user, password string) []string {
		return header("Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
	}
	for what, config := range map[string][]string{
		"full token as bearer":          header("Bearer " + full),
		"secret as bearer":              header("Bearer " + bare),
		"full token as password":        basicHeader("x", full),
		"secret as password":            basicHeader("x", bare),
		"secret as password of no user": basicHeader("", bare),
		"percent-encoded token":         basicHeader("x", url.QueryEscape(full)),
		"admin token as password":       basicHeader("x", r.home.admin),
		"lower-case name of the scheme": header("bearer " + bare),
		"percent-encoded question mark": basicHeader("git", strings.Replace(full, "?", "%3F", 1)),
	} {
		if out, err := r.try("seed", append(config, "ls-remote", r.made.Remote)...); err != nil {
			r.Errorf("%s: %v: %s", what, err, out)
		}
	}
	for what, config := range map[string][]string{
		"secret as user":         basicHeader(bare, ""),
		"token of no repository": basicHeader("x", "art_v1_"+strings.Repeat("1", 40)),
		"another scheme":         header("Digest " + bare),
	} {
		if out, err := r.try("seed", append(config, "ls-remote", r.made.Remote)...); err == nil {
			r.Errorf("%s was accepted: %s", what, out)
		}
	}
	other := r.home.create(r.T, r.made.Name+"-other")
	if out, err := r.try("seed", append(header("Bearer "+bare), "ls-remote", other.Remote)...); err == nil {
		r.Errorf("a token of another repository was accepted: %s", out)
	}
	// URLs without .git, and with another case of the letters of the name, work too.
	for _, u := range []string{strings.TrimSuffix(r.made.Remote, ".git"),
		strings.Replace(r.made.Remote, "/spell", "/Spell", 1)} {
		if out, err := r.try("seed", append(header("Bearer "+bare), "ls-remote", u)...); err != nil {
			r.Logf("%s: %v: %s", u, err, out)
		}
	}
}
