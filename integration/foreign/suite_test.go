package foreign

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

// auth is how a client authenticates.
type auth string

const (
	basic   auth = "basic"
	bearer  auth = "bearer"
	nothing auth = "none"
)

// implementation is a git client. run runs one of these commands and returns what it prints:
//
//	clone URL DIR [DEPTH]          all branches of a repository, or DEPTH commits of one
//	commit DIR NAME TEXT           a file, on the current branch; prints the id of the commit
//	push DIR SOURCE TARGET [force] a branch; an empty source deletes the target
//	fetch DIR                      all branches; prints the id of origin/main
//	show DIR COMMIT PATH           prints a file of a commit; not all clients have it
type implementation struct {
	run   func(a auth, token string, args ...string) (string, error)
	lacks []string // features that the client does not have: bearer, depth
}

// programmed returns a program of testdata as an implementation. The program gets the token in AFS_TOKEN and the value
// of auth in AFS_AUTH.
func programmed(t *testing.T, dir string, lacks []string, command ...string) implementation {
	run := func(a auth, token string, args ...string) (string, error) {
		env := append(gittest.Env(), "HOME="+dir, "AFS_AUTH="+string(a), "AFS_TOKEN="+token)
		return output(t, dir, env, command[0], append(command[1:len(command):len(command)], args...)...)
	}
	return implementation{run, lacks}
}

// has reports whether the client has a feature.
func (c implementation) has(feature string) bool {
	for _, f := range c.lacks {
		if f == feature {
			return false
		}
	}
	return true
}

// bench is one client with one repository.
type bench struct {
	*testing.T
	implementation
	home *home
	repo client.Created
	dir  string // directory for clones
	seed string // clone by stock git, with which the test checks the repository
}

// suite tests the operations that every client has.
func suite(t *testing.T, c implementation) {
	h := serve(t)
	b := &bench{T: t, implementation: c, home: h, repo: h.create(t, "app"), dir: t.TempDir()}
	b.seed = filepath.Join(b.dir, "seed")
	b.git(b.dir, "init", "-q", "-b", "main", b.seed)
	for i := range 3 {
		for j := range 20 {
			b.write(filepath.Join(b.seed, fmt.Sprintf("d%d/f%d", i, j)), fmt.Sprintf("file %d of %d\n", j, i))
		}
		b.git(b.seed, "add", ".")
		b.git(b.seed, "commit", "-q", "-m", fmt.Sprint("commit ", i))
	}
	b.git(b.seed, "tag", "-a", "-m", "release", "v1")
	b.git(b.seed, "remote", "add", "origin", strings.Replace(b.repo.Remote, "://", "://x:"+secret(b.repo.Token)+"@", 1))
	b.git(b.seed, "push", "-q", "origin", "main", "v1")

	work := filepath.Join(b.dir, "work")
	b.must(basic, b.repo.Token, "clone", b.repo.Remote, work)
	if got := b.git(work, "rev-parse", "HEAD"); got != b.git(b.seed, "rev-parse", "main") {
		t.Fatalf("clone: HEAD is %s, want that of the repository", got)
	}
	if out := b.git(work, "status", "--porcelain"); out != "" {
		t.Errorf("clone: files differ from the commit:\n%s", out)
	}
	if got := b.git(work, "rev-parse", "v1"); got != b.git(b.seed, "rev-parse", "v1") {
		t.Errorf("clone: tag v1 is %s", got)
	}
	b.pushes(work)
	b.refusals(work)
	if c.has("bearer") {
		b.must(bearer, b.repo.Token, "clone", b.repo.Remote, filepath.Join(b.dir, "bearer"))
		id := b.must(bearer, b.repo.Token, "commit", filepath.Join(b.dir, "bearer"), "bearer", "bearer\n")
		b.must(bearer, b.repo.Token, "push", filepath.Join(b.dir, "bearer"), "main", "bearer")
		b.remote("bearer", id)
	}
	if c.has("depth") {
		shallow := filepath.Join(b.dir, "shallow")
		b.must(basic, b.repo.Token, "clone", b.repo.Remote, shallow, "1")
		if got := b.git(shallow, "rev-list", "--count", "HEAD"); got != "1" {
			t.Errorf("clone of depth 1 has %s commits", got)
		}
	}
	b.git(b.seed, "fetch", "-q", "origin")
	b.git(b.seed, "fsck", "--full", "--strict")
}

// pushes creates, changes, overwrites and deletes branches of the repository.
func (b *bench) pushes(work string) {
	b.Helper()
	first := b.must(nothing, "", "commit", work, "new", "one\n")
	b.must(basic, b.repo.Token, "push", work, "main", "main")
	b.remote("main", first)

	b.git(b.seed, "pull", "-q", "--ff-only", "origin", "main")
	b.write(filepath.Join(b.seed, "other"), "by another client\n")
	b.git(b.seed, "add", ".")
	b.git(b.seed, "commit", "-q", "-m", "other")
	b.git(b.seed, "push", "-q", "origin", "main")
	other := b.git(b.seed, "rev-parse", "main")
	if got := b.must(basic, b.repo.Token, "fetch", work); got != other {
		b.Errorf("fetch: origin/main is %s, want %s", got, other)
	}

	second := b.must(nothing, "", "commit", work, "new", "two\n")
	if out, err := b.run(basic, b.repo.Token, "push", work, "main", "main"); err == nil {
		b.Errorf("push that is not a fast-forward succeeded: %s", out)
	}
	b.remote("main", other)
	b.must(basic, b.repo.Token, "push", work, "main", "side")
	b.remote("side", second)
	b.must(basic, b.repo.Token, "push", work, "main", "main", "force")
	b.remote("main", second)
	b.must(basic, b.repo.Token, "push", work, "", "side")
	b.remote("side", "")
	b.git(b.seed, "fetch", "-q", "origin")
	b.git(b.seed, "reset", "-q", "--hard", "origin/main")
}

// refusals uses tokens that do not allow the operation, and logs the errors that the client prints.
func (b *bench) refusals(work string) {
	b.Helper()
	id := b.must(nothing, "", "commit", work, "refused", "refused\n")
	main := b.git(b.seed, "rev-parse", "origin/main")
	read := b.home.token(b.T, client.CreateToken{Repo: "app", Scope: client.Read})
	b.must(basic, read.Plaintext, "clone", b.repo.Remote, filepath.Join(b.dir, "read"))
	scoped := b.home.token(b.T, client.CreateToken{Repo: "app", Refs: []client.RefRule{{Glob: "refs/heads/agent/**"}}})
	revoked := b.home.token(b.T, client.CreateToken{Repo: "app"})
	if err := b.home.client.RevokeToken(b.Context(), "foreign", revoked.ID); err != nil {
		b.Fatal(err)
	}
	wrong := "art_v1_" + strings.Repeat("0", 40)
	for _, x := range []struct {
		what, token string
		auth        auth
		args        []string
		says        []string // the output must contain one of these
	}{
		{"clone with a wrong token", wrong, basic, []string{"clone", b.repo.Remote, filepath.Join(b.dir, "wrong")},
			[]string{"403", "Invalid or expired token", "not permitted"}},
		{"clone with a revoked token", revoked.Plaintext, basic,
			[]string{"clone", b.repo.Remote, filepath.Join(b.dir, "revoked")},
			[]string{"403", "Invalid or expired token", "not permitted"}},
		// libgit2 prints its error GIT_EAUTH as -16.
		{"clone without a token", "", nothing, []string{"clone", b.repo.Remote, filepath.Join(b.dir, "none")},
			[]string{"401", "uthent", "Username", "credentials", "-16"}},
		{"push with a read token", read.Plaintext, basic, []string{"push", work, "main", "main"},
			[]string{"403", "Insufficient permissions", "not permitted"}},
		{"push of a ref that the token may not change", scoped.Plaintext, basic, []string{"push", work, "main", "main"}, nil},
	} {
		out, err := b.run(x.auth, x.token, x.args...)
		if err == nil {
			b.Errorf("%s succeeded: %s", x.what, out)
			continue
		}
		said := len(x.says) == 0
		for _, s := range x.says {
			said = said || strings.Contains(out, s)
		}
		if !said {
			b.Errorf("%s: the client does not say why: %s", x.what, out)
		}
		if t := secret(x.token); t != "" && strings.Contains(out, t) && !strings.Contains(x.what, "wrong") {
			b.Errorf("%s: the client prints the token", x.what)
		}
		b.Logf("%s: %s", x.what, out)
	}
	b.remote("main", main)
	b.must(basic, scoped.Plaintext, "push", work, "main", "agent/one")
	b.remote("agent/one", id)
}

// secret returns a token without its time of expiry.
func secret(token string) string {
	s, _, _ := strings.Cut(token, "?")
	return s
}

// must runs a command of the client, which must succeed.
func (b *bench) must(a auth, token string, args ...string) string {
	b.Helper()
	out, err := b.run(a, token, args...)
	if err != nil {
		b.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out[strings.LastIndexByte(out, '\n')+1:]
}

// remote checks that a branch on the server points to an id; "" means that there is no such branch.
func (b *bench) remote(branch, id string) {
	b.Helper()
	out := b.git(b.seed, "ls-remote", "origin", "refs/heads/"+branch)
	if got, _, _ := strings.Cut(out, "\t"); got != id {
		b.Errorf("branch %s of the server is %q, want %q", branch, got, id)
	}
}

func (b *bench) git(dir string, args ...string) string {
	b.Helper()
	return gittest.Must(b, dir, args...)
}

func (b *bench) write(path, text string) {
	b.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
}
