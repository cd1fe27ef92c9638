package review

import (
	"fmt"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/replicatest"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/githttp"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session"
)

// world is a server with a repository that contains a session, and a Service for it.
type world struct {
	testing.TB
	*Service
	bed    *replicatest.Bed
	url    string // URL of the repository, with the token of the owner
	repo   records.Repo
	format object.Format
	dir    string // git directory from which the session was pushed
	owner  By
	ann    By // a user with a token of the repository
	bob    By
}

func newWorld(t testing.TB, format object.Format) *world {
	t.Helper()
	w := &world{TB: t, format: format, dir: t.TempDir(), bed: replicatest.New(t, t.TempDir(), "", replica.Options{})}
	log := zap.NewNop()
	m := meter.New(w.bed.DB.Usage, w.bed.DB.Audit, log)
	t.Cleanup(func() { m.Close() })
	git, err := githttp.New(githttp.Options{Records: w.bed.DB, Replicas: w.bed.Set,
		Guard: access.NewGuard(w.bed.DB), Meter: m,
		Account: "account", Dir: filepath.Join(w.bed.Dir, "git"), Log: log}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(git.Close)
	server := httptest.NewServer(git)
	t.Cleanup(server.Close)
	w.Service = New(Options{Records: w.bed.DB, Replicas: w.bed.Set, Pusher: git, Log: log})
	t.Cleanup(func() { w.Service.Close() })
	w.repo = records.Repo{ID: records.NewID(), Namespace: "ns", Name: "r", DefaultBranch: "main",
		ObjectFormat: format.String(),
		Status:       records.Ready}
	if err := w.bed.DB.Repos.Create(t.Context(), records.Creation{Repo: w.repo}); err != nil {
		t.Fatal(err)
	}
	var text string
	w.owner, text = w.token(records.Token{Role: records.OwnerToken, Namespace: "ns", Actor: "owner"})
	w.ann, _ = w.token(records.Token{RepoID: w.repo.ID, Actor: "ann"})
	w.bob, _ = w.token(records.Token{RepoID: w.repo.ID, Actor: "bob"})
	w.url = strings.Replace(server.URL, "//", "//x:"+text+"@", 1) + "/git/ns/r.git"
	w.git("init", "-q", "--bare", "--object-format="+format.String(), ".")
	return w
}

// token creates a token. Without a role, it is a token for the repository.
func (w *world) token(t records.Token) (By, string) {
	w.Helper()
	if t.Role == "" {
		t.Role, t.Namespace, t.Expires = records.RepoToken, "ns", time.Now().Add(time.Hour)
	}
	t, text := access.Mint(t, time.Now())
	if err := w.bed.DB.Tokens.Create(w.Context(), t, nil, records.Cause{}); err != nil {
		w.Fatal(err)
	}
	return By{Token: t, Cause: records.Cause{TokenID: t.ID, Actor: t.Actor, Method: "POST", Target: "/test"}}, text
}

// git runs git in the git directory of the session.
func (w *world) git(args ...string) string {
	w.Helper()
	return gittest.Must(w, w.dir, args...)
}

// input runs git with the given standard input.
func (w *world) input(stdin string, args ...string) string {
	w.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = w.dir, gittest.Env(), strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("git %s: %v", args[0], err)
	}
	return strings.TrimSpace(string(out))
}

// commit stores a commit with exactly these files.
func (w *world) commit(parent string, files map[string]string) string {
	w.Helper()
	var tree strings.Builder
	for name, text := range files {
		fmt.Fprintf(&tree, "100644 blob %s\t%s\n", w.input(text, "hash-object", "-w", "--stdin"), name)
	}
	args := []string{"commit-tree", "-m", "commit", w.input(tree.String(), "mktree")}
	if parent != "" {
		args = append(args, "-p", parent)
	}
	return w.git(args...)
}

// push changes a ref of the server by a push of stock git, with the token of the owner.
func (w *world) push(ref, id string) {
	w.Helper()
	w.git("push", "-q", "--force", w.url, id+":"+ref)
}

// session stores a session whose base commit is base. If held is set, a machine holds the session.
func (w *world) session(name, base string, held bool) {
	w.Helper()
	left := `,"left":"2026-11-20T09:00:00Z"`
	if held {
		left = ""
	}
	meta :=
		fmt.Sprintf(`{"version":1,"session":%q,"remote":"https://example.org/app","ref":"refs/heads/main","base":%q,"format":%q,
		"began":"2026-11-20T08:00:00Z","state":"paused","lanes":[{"name":"main","writer":{"host":"desk"},"since":"2026-11-20T08:00:00Z",
		"segment":1%s}]}`, name, base, w.format, left)
	w.push(session.MetaRef(name), w.commit("", map[string]string{"session.json": meta,
		"transitions.jsonl": `{"state":"open","time":"2026-11-20T08:00:00Z","actor":"ann@desk","reason":"begun"}` + "\n"}))
}

// checkpoint stores a checkpoint of a session, and returns its id. Its working tree is that of commit. Its HEAD is
// head, or commit if head is "".
func (w *world) checkpoint(name, commit, head string) string {
	w.Helper()
	id := func(text string) object.ID {
		parsed, err := object.ParseIDOf(w.format, text)
		if err != nil {
			w.Fatal(err)
		}
		return parsed
	}
	p := session.Checkpoint{ID: session.NewCheckpointID(time.Now()), Session: name, Lane: "main", Segment: 1,
		Time: time.Now(),
		Tree: id(w.git("rev-parse", commit+"^{tree}")), State: id(head), Head: id(head)}
	w.push(session.SegmentRef(name, "main", 1), w.input(string(p.Encode(object.ID{})), "hash-object", "-w", "-t",
		"commit", "--stdin"))
	return string(p.ID)
}

// work stores a session with a commit that changes the file f. Its base has the files f and g, and becomes the branch
// main.
func (w *world) work(name string) (base, head, point string) {
	w.Helper()
	base = w.commit("", map[string]string{"f": "one\ntwo\nthree\n", "g": "g\n"})
	head = w.commit(base, map[string]string{"f": "zero\none\ntwo\nthree\n", "g": "g\n"})
	w.push("refs/heads/main", base)
	w.session(name, base, false)
	return base, head, w.checkpoint(name, head, head)
}

// ref returns the object id of a ref on the server, "" if the ref does not exist.
func (w *world) ref(name string) string {
	w.Helper()
	id, _, _ := strings.Cut(w.git("ls-remote", w.url, name), "\t")
	return id
}

// show returns the contents of a file in a ref on the server.
func (w *world) show(ref, name string) string {
	w.Helper()
	w.git("fetch", "-q", "--force", w.url, ref+":refs/shown")
	return w.git("show", "refs/shown:"+name)
}

// is returns the Problem in err, which must have the given kind and text.
func (w *world) is(err error, kind Kind, text string) *Problem {
	w.Helper()
	p, ok := err.(*Problem)
	if !ok || p.Kind != kind || !strings.Contains(p.Text, text) {
		w.Errorf("got error %v (%+v), want kind %d with %q", err, p, kind, text)
	}
	return p
}
