package imports

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/server/egress"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// TestMain runs the tests, or acts as a node that TestAnotherNodeContinues starts and kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("IMPORTS_TEST_NODE"); dir != "" {
		n, err := openNode(dir, "killed", Options{}, zap.NewNop())
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		_ = n
		select {}
	}
	os.Exit(m.Run())
}

// node is a node of a server.
type node struct {
	*Importer
	db   *records.DB
	set  *replica.Set
	logs *observer.ObservedLogs
}

var quick = pace{poll: 20 * time.Millisecond, lease: 3 * time.Second, save: 10 * time.Millisecond,
	retry: 10 * time.Millisecond,
	slow:  time.Minute, count: time.Minute}

// openNode opens a node with the database and the objects in a directory. It waits only short times between its steps.
func openNode(dir, name string, o Options, log *zap.Logger) (node, error) {
	return openNodeAt("sqlite:"+filepath.Join(dir, "records.db"), dir, name, o, log)
}

// openNodeAt opens a node with the database at a URL and the objects in a directory.
func openNodeAt(url, dir, name string, o Options, log *zap.Logger) (node, error) {
	ctx, stop := contextOf()
	defer stop()
	db, err := records.Open(ctx, url)
	if err != nil {
		return node{}, err
	}
	store, err := objects.OpenDir(filepath.Join(dir, "objects"))
	if err != nil {
		return node{}, err
	}
	set, err := replica.Open(replica.Options{Dir: filepath.Join(dir, name, "replicas"), Records: db, Objects: store,
		Memory: testMemory})
	if err != nil {
		return node{}, err
	}
	o.Account, o.Records, o.Replicas, o.Scratch, o.AllowHTTP, o.Log = "acc", db, set,
		filepath.Join(dir, name, "scratch"), true, log
	o.Secrets = filepath.Join(dir, "secrets")
	o.AllowPrivate = !strings.HasPrefix(name, "public")
	i, err := start(o, quick)
	return node{Importer: i, db: db, set: set}, err
}

func newNode(t *testing.T, dir, name string, o Options) node {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	n, err := openNode(dir, name, o, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	n.logs = logs
	t.Cleanup(func() {
		n.Close()
		n.set.Close()
		n.db.Close()
	})
	return n
}

// create creates a repository that waits for its import, and returns its record.
func (n node) create(t *testing.T, name, format string) records.Repo {
	t.Helper()
	r := records.Repo{ID: records.NewID(), Namespace: "ns", Name: name, Status: records.Importing, ObjectFormat: format}
	if err := n.db.Repos.Create(t.Context(), records.Creation{Repo: r}); err != nil {
		t.Fatal(err)
	}
	return n.repo(t, r.ID)
}

func (n node) repo(t *testing.T, id string) records.Repo {
	t.Helper()
	r, err := n.db.Repos.ByID(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// end waits for the end of an import, and returns its status.
func (n node) end(t *testing.T, r records.Repo) Status {
	t.Helper()
	var s Status
	await.Until(t, "the import has ended", func() bool {
		var err error
		s, err = n.Status(t.Context(), r)
		return err == nil && !s.Finished.IsZero()
	})
	return s
}

// succeed starts an import, and waits until it has succeeded.
func (n node) succeed(t *testing.T, r records.Repo, request Request) Status {
	t.Helper()
	if err := n.Start(t.Context(), r, request, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	s := n.end(t, r)
	if s.State != Succeeded || s.Error != "" {
		t.Fatalf("import has ended with %+v", s)
	}
	return s
}

func (n node) refs(t *testing.T, id string) map[string]string {
	t.Helper()
	list, err := n.db.Repos.Refs(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	refs := map[string]string{}
	for _, r := range list {
		refs[r.Name] = r.ID
	}
	return refs
}

// testMemory is the limit of the memory of git processes.
const testMemory = 512 << 20

// limited returns the number of git processes of the node. The test fails if one has no limit of memory.
func (n node) limited(t *testing.T) (count int) {
	t.Helper()
	pids, err := proc.PIDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		env, _ := proc.Of(pid).Environ()
		if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "HOME="+n.o.Scratch+"/") }) {
			continue
		}
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_DATA, nil, &limit); err == nil {
			if count++; limit.Cur != testMemory {
				t.Errorf("process %d can allocate %d bytes", pid, limit.Cur)
			}
		}
	}
	return count
}

// fsck checks the replica of a repository with git, and returns its directory.
func (n node) fsck(t *testing.T, id string) string {
	t.Helper()
	r, err := n.set.Acquire(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Release)
	gittest.Must(t, r.Dir, "fsck", "--strict", "--connectivity-only")
	return r.Dir
}

// types returns the types and the bodies of all events.
func (n node) types(t *testing.T) (types, bodies []string) {
	t.Helper()
	list, err := n.db.Events.After(t.Context(), 0, "", "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		types = append(types, strings.TrimPrefix(e.Type, "cf.artifacts.repo."))
		bodies = append(bodies, string(e.Body))
	}
	return types, bodies
}

// upstream is another git server with one repository.
type upstream struct {
	*gittest.Server
	repo *gittest.Repo
	url  string
}

func newUpstream(t *testing.T, f object.Format) upstream {
	t.Helper()
	dir := t.TempDir()
	repo, err := gittest.New(filepath.Join(dir, "r.git"), gittest.RepoOptions{Format: f})
	if err != nil {
		t.Fatal(err)
	}
	s, err := gittest.Serve(gittest.ServerOptions{Root: dir, Cheap: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return upstream{s, repo, s.URL("r.git")}
}

func (u upstream) commit(t *testing.T, branch string) string {
	t.Helper()
	id, err := u.repo.Commit(branch,
		map[string]gittest.File{branch: {Data: []byte(strings.Repeat(time.Now().String(), 100))}}, branch)
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// refs returns the refs that an import must copy.
func (u upstream) refs(t *testing.T) map[string]string {
	t.Helper()
	refs := parseRefs(gittest.Must(t, u.repo.Path, "for-each-ref", "--format=%(objectname) %(refname)"))
	maps.DeleteFunc(refs, func(name, _ string) bool { return !covers("", name) })
	return refs
}

func TestAnImportIsACopy(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			u := newUpstream(t, f)
			u.commit(t, "trunk")
			u.commit(t, "side")
			gittest.Must(t, u.repo.Path, "symbolic-ref", "HEAD", "refs/heads/trunk")
			gittest.Must(t, u.repo.Path, "tag", "-a", "-m", "one", "v1", "side")
			gittest.Must(t, u.repo.Path, "notes", "add", "-m", "note", "trunk")
			gittest.Must(t, u.repo.Path, "update-ref", "refs/pull/1/head", "trunk")
			gittest.Must(t, u.repo.Path, "update-ref", "refs/afs/x/y", "side")
			gittest.Must(t, u.repo.Path, "update-ref", "refs/afs/policy", "side")         // not copied
			gittest.Must(t, u.repo.Path, "update-ref", "refs/afs/approvals/work", "side") // not copied
			n := newNode(t, t.TempDir(), "n", Options{})
			remote, err := n.Check(t.Context(), Request{URL: u.url + "/"})
			if err != nil || remote != (Remote{"trunk", f.String()}) {
				t.Fatalf("check: %+v, %v", remote, err)
			}
			r := n.create(t, "r", f.String())
			s := n.succeed(t, r, Request{URL: u.url})
			if got, want := n.refs(t, r.ID), u.refs(t); !maps.Equal(got, want) || len(got) != 5 {
				t.Errorf("refs %v, want %v", got, want)
			}
			r = n.repo(t, r.ID)
			if r.Status != records.Ready || r.DefaultBranch != "trunk" || !r.LastPush.IsZero() || r.Shallow != "" {
				t.Errorf("imported repository: %+v", r)
			}
			n.fsck(t, r.ID)
			snap, err := n.db.Repos.Snapshot(t.Context(), r.ID)
			if err != nil || len(snap.Packs) != 1 || !slices.Contains(snap.Packs[0].Extensions, ".rev") {
				t.Errorf("packs %+v, %v, want one with .rev", snap.Packs, err)
			}
			if s.Bytes < snap.Packs[0].Bytes/2 || s.Started.IsZero() {
				t.Errorf("status %+v, pack has %d bytes", s, snap.Packs[0].Bytes)
			}
			types, bodies := n.types(t)
			if !slices.Equal(types, []string{"imported"}) ||
				!strings.Contains(bodies[0], `"sourceUrl":"`+u.url+`","branch":"trunk"`) ||
				!json.Valid([]byte(bodies[0])) {
				t.Errorf("events %v %v", types, bodies)
			}
			await.Until(t, "the scratch directory is empty", func() bool {
				left, err := os.ReadDir(n.o.Scratch)
				return err == nil && len(left) == 0
			})
			if format := map[string]string{"sha1": "sha256", "sha256": "sha1"}[f.String()]; true {
				other := n.create(t, "other", format)
				if err := n.Start(t.Context(), other, Request{URL: u.url}, records.Cause{}); err != nil {
					t.Fatal(err)
				}
				if s := n.end(t, other); s.State != Failed || !strings.Contains(s.Error, "object format") {
					t.Errorf("import into another object format: %+v", s)
				}
			}
		})
	}
}

func TestARepeatedImportLeavesLocalChangesAlone(t *testing.T) {
	u := newUpstream(t, object.SHA1)
	for _, b := range []string{"main", "forced", "gone", "ours", "both", "quiet", "oursgone"} {
		u.commit(t, b)
	}
	n := newNode(t, t.TempDir(), "n", Options{})
	r := n.create(t, "r", "sha1")
	n.succeed(t, r, Request{URL: u.url})
	u.commit(t, "quiet")
	n.succeed(t, r, Request{})
	snap, err := n.db.Repos.Snapshot(t.Context(), r.ID)
	if err != nil || !slices.ContainsFunc(snap.Packs, func(p records.Pack) bool { return p.Objects == 3 }) {
		t.Errorf("packs %+v, %v: want one with the commit, tree and file that were new", snap.Packs, err)
	}
	before := n.refs(t, r.ID)
	head := func(b string) string { return "refs/heads/" + b }
	main, quiet := before[head("main")], before[head("quiet")]
	zero := strings.Repeat("0", 40)
	_, err = n.db.Repos.Push(t.Context(), records.Push{RepoID: r.ID, Updates: []records.RefUpdate{
		{Name: head("ours"), Old: before[head("ours")], New: main},
		{Name: head("both"), Old: before[head("both")], New: main},
		{Name: head("local"), Old: zero, New: quiet}, {Name: head("oursgone"), Old: before[head("oursgone")], New: zero},
	}})
	if err != nil {
		t.Fatal(err)
	}
	added := u.commit(t, "main")
	u.commit(t, "both")
	fresh := u.commit(t, "fresh")
	gittest.Must(t, u.repo.Path, "update-ref", head("forced"), quiet)
	gittest.Must(t, u.repo.Path, "update-ref", "-d", head("gone"))
	if err := n.Start(t.Context(), n.repo(t, r.ID), Request{}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	s := n.end(t, r)
	if s.State != Succeeded || s.Phase != "left 1 refs alone that were changed here" {
		t.Errorf("status %+v", s)
	}
	want := map[string]string{
		head("main"): added, head("forced"): quiet, head("ours"): main, head("both"): main, head("quiet"): quiet,
		head("local"): quiet,
		head("fresh"): fresh,
	}
	if got := n.refs(t, r.ID); !maps.Equal(got, want) {
		t.Errorf("refs\n%v, want\n%v", got, want)
	}
	n.fsck(t, r.ID)
	types, bodies := n.types(t)
	slices.Sort(types)
	if !slices.Equal(types, []string{"imported", "imported", "imported", "pushed", "pushed", "pushed",
		"pushed", "pushed"}) {
		t.Errorf("events %v", types)
	}
	if !slices.ContainsFunc(bodies, func(b string) bool { return strings.Contains(b, `"commits":[{"id":"`+added+`"`) }) {
		t.Errorf("no event lists the new commit of main: %v", bodies)
	}
	n.succeed(t, r, Request{}) // the other server has no new commits at this time
	if got := n.refs(t, r.ID); !maps.Equal(got, want) {
		t.Errorf("refs after an import without news\n%v, want\n%v", got, want)
	}
}

func TestOneBranchWithADepth(t *testing.T) {
	u := newUpstream(t, object.SHA1)
	var last string
	for range 5 {
		last = u.commit(t, "main")
	}
	u.commit(t, "other")
	n := newNode(t, t.TempDir(), "n", Options{})
	r := n.create(t, "r", "sha1")
	n.succeed(t, r, Request{URL: u.url, Branch: "main", Depth: 2})
	if got := n.refs(t, r.ID); len(got) != 1 || got["refs/heads/main"] != last {
		t.Errorf("refs %v, want main only", got)
	}
	dir := n.fsck(t, r.ID)
	clone := filepath.Join(t.TempDir(), "clone")
	gittest.Must(t, t.TempDir(), "clone", "-q", "file://"+dir, clone)
	if got := gittest.Must(t, clone, "rev-list", "--count", "HEAD"); got != "2" {
		t.Errorf("clone has %s commits, want 2", got)
	}
	last = u.commit(t, "main")
	n.succeed(t, r, Request{})
	n.fsck(t, r.ID)
	gittest.Must(t, clone, "pull", "-q")
	if got := gittest.Must(t, clone, "rev-parse", "HEAD"); got != last {
		t.Errorf("pull after the second import: HEAD is %s, want %s", got, last)
	}
	gittest.Must(t, clone, "-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "--allow-empty", "-m", "local")
	have, err := n.set.Acquire(t.Context(), r.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer have.Release()
	base, err := have.Copy(t.Context()) // a push uses a copy of the replica
	if err != nil {
		t.Fatal(err)
	}
	defer base.Remove()
	gittest.Must(t, clone, "push", "-q", base.Dir, "HEAD:refs/heads/new")
}

func TestHTTPSIsVerified(t *testing.T) {
	dir := t.TempDir()
	u := newUpstream(t, object.SHA1)
	want := u.commit(t, "main")
	u.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "me", Pass: password})
	at, _ := url.Parse(u.url)
	secure := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: at.Host}))
	defer secure.Close()
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	remote := secure.URL + at.Path
	secretFile(t, dir, "good", "https://"+url.UserPassword("me", password).String()+"@"+
		strings.TrimPrefix(secure.URL, "https://"))
	strict := newNode(t, dir, "strict", Options{})
	if _, err := strict.Check(t.Context(), Request{URL: remote, Namespace: "ns", Secret: "good"}); !errors.Is(err,
		ErrUnavailable) {
		t.Errorf("with an unknown certificate: got %v, want ErrUnavailable", err)
	}
	strict.Close()
	n := newNode(t, dir, "n", Options{CAFile: ca})
	if _, err := n.Check(t.Context(), Request{URL: remote, Namespace: "ns"}); !errors.Is(err, ErrAuth) {
		t.Errorf("without credentials: got %v, want ErrAuth", err)
	}
	r := n.create(t, "r", "sha1")
	s := n.succeed(t, r, Request{URL: remote, Secret: "good"})
	if got := n.refs(t, r.ID)["refs/heads/main"]; got != want || s.Bytes == 0 {
		t.Errorf("main is %s after %d bytes, want %s", got, s.Bytes, want)
	}
}

// secretFile writes a file with credentials.
func secretFile(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, "secrets", "ns", name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const password = "s3cr3t p@ss/word"

func TestPrivateRepositories(t *testing.T) {
	dir := t.TempDir()
	u := newUpstream(t, object.SHA1)
	u.commit(t, "main")
	u.Inject(gittest.Fault{Kind: gittest.RequireAuth, User: "me", Pass: password})
	n := newNode(t, dir, "n", Options{})
	at, _ := url.Parse(u.url)
	secretFile(t, dir, "good", "# comment\nhttp://x:y@other.example\n"+"http://"+url.UserPassword("me", password).String()+
		"@"+at.Host+"\n")
	secretFile(t, dir, "bad", "http://me:wrong@"+at.Host+"\n")
	secretFile(t, dir, "elsewhere", "http://me:wrong@other.example\n")
	for secret, want := range map[string]error{"": ErrAuth, "bad": ErrAuth, "elsewhere": ErrAuth, "missing": ErrAuth,
		"../ns/good": ErrAuth, "good": nil} {
		if _, err := n.Check(t.Context(), Request{URL: u.url, Namespace: "ns", Secret: secret}); !errors.Is(err, want) ||
			want == nil && err != nil {
			t.Errorf("with the secret %q: got %v, want %v", secret, err, want)
		}
	}
	if _, err := n.Check(t.Context(), Request{URL: u.url, Namespace: "other", Secret: "good"}); !errors.Is(err, ErrAuth) {
		t.Errorf("with the secret of another namespace: got %v, want ErrAuth", err)
	}
	r := n.create(t, "r", "sha1")
	n.succeed(t, r, Request{URL: u.url, Secret: "good"})
	n.fsck(t, r.ID)
	failing := n.create(t, "failing", "sha1")
	if err := n.Start(t.Context(), failing, Request{URL: u.url, Secret: "bad"}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	if s := n.end(t, failing); s.State != Failed || !strings.Contains(s.Error, ErrAuth.Error()) {
		t.Errorf("status %+v", s)
	}
	if r := n.repo(t, failing.ID); r.Status != records.Ready {
		t.Errorf("status of the repository: %s", r.Status)
	}
	n.Close()
	filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !strings.Contains(path, "/secrets/") {
			text, _ := os.ReadFile(path)
			if strings.Contains(string(text), "s3cr3t") || strings.Contains(string(text), "wrong") {
				t.Errorf("%s contains a password", path)
			}
		}
		return nil
	})
	for _, e := range n.logs.All() {
		if text := fmt.Sprint(e.Message, e.ContextMap()); strings.Contains(text, "s3cr3t") {
			t.Errorf("a password was logged: %s", text)
		}
	}
}

func TestBadURLsAreRefused(t *testing.T) {
	dir := t.TempDir()
	u := newUpstream(t, object.SHA1)
	u.commit(t, "main")
	n, public := newNode(t, dir, "n", Options{}), newNode(t, dir, "public", Options{})
	mux := http.NewServeMux()
	mux.HandleFunc("/page/info/refs", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") })
	mux.HandleFunc("/forbidden/info/refs",
		func(w http.ResponseWriter, r *http.Request) { http.Error(w, "", http.StatusForbidden) })
	mux.HandleFunc("/down/info/refs",
		func(w http.ResponseWriter, r *http.Request) { http.Error(w, "", http.StatusServiceUnavailable) })
	mux.HandleFunc("/loop/info/refs",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) })
	mux.HandleFunc("/out/info/refs",
		func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) })
	mux.HandleFunc("/file/info/refs", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "file:///etc/info/refs", http.StatusFound)
	})
	mux.HandleFunc("/moved/info/refs", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, u.url+"/info/refs?"+r.URL.RawQuery, http.StatusMovedPermanently)
	})
	mux.HandleFunc("/empty/info/refs", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
	})
	web := httptest.NewServer(mux)
	defer web.Close()
	for _, c := range []struct {
		request Request
		node    node
		want    error
	}{
		{Request{URL: ""}, n, ErrScheme}, {Request{URL: "http://example.com/r.git"}, n, ErrScheme},
		{Request{URL: "file:///etc"}, n, ErrScheme},
		{Request{URL: "ssh://git@example.com/r"}, n, ErrScheme}, {Request{URL: "https://me:pw@example.com/r"}, n, ErrScheme},
		{Request{URL: "https:///r"}, n, ErrScheme}, {Request{URL: "https://example.com/r?x"}, n, ErrScheme},
		{Request{URL: "-ohttps://x"}, n, ErrScheme},
		{Request{URL: "ext::sh -c id"}, n, ErrScheme},
		{Request{URL: "https://example.com/" + strings.Repeat("x", 3000)}, n, ErrScheme},
		{Request{URL: "https://127.0.0.1:1/r"}, public, egress.ErrPrivate},
		{Request{URL: "https://169.254.169.254/latest"}, public, egress.ErrPrivate},
		{Request{URL: "https://[::1]/r"}, public, ErrNotGit}, {Request{URL: "https://127.0.0.1:1/r"}, n, ErrUnavailable},
		{Request{URL: u.URL("missing.git")}, n, ErrNotGit}, {Request{URL: web.URL + "/page"}, n, ErrNotGit},
		{Request{URL: web.URL + "/nothing"}, n, ErrNotGit},
		{Request{URL: web.URL + "/forbidden"}, n, ErrAuth}, {Request{URL: web.URL + "/down"}, n, ErrUnavailable},
		{Request{URL: web.URL + "/loop"}, n, ErrNotGit},
		{Request{URL: web.URL + "/out"}, n, ErrNotGit}, {Request{URL: web.URL + "/file"}, n, ErrNotGit},
		{Request{URL: web.URL + "/empty"}, n, ErrNotGit},
		{Request{URL: u.url, Branch: "missing"}, n, ErrBranch}, {Request{URL: u.url, Branch: "a..b"}, n, ErrBranch},
		{Request{URL: u.url, Depth: -1}, n, ErrDepth},
		{Request{URL: u.url, Branch: "main"}, n, nil}, {Request{URL: web.URL + "/moved"}, n, nil},
	} {
		if _, err := c.node.Check(t.Context(), c.request); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("check %+v: got %v, want %v", c.request, err, c.want)
		} else if err != nil && strings.Contains(err.Error(), "pw") {
			t.Errorf("error contains a password: %v", err)
		}
	}
	public.Close() // otherwise this node would run the import
	r := n.create(t, "r", "sha1")
	n.succeed(t, r, Request{URL: web.URL + "/moved"})
	if err := n.Start(t.Context(), n.create(t, "never", "sha1"), Request{}, records.Cause{}); !errors.Is(err,
		records.ErrNotFound) {
		t.Errorf("repeat an import that never was: %v", err)
	}
}

// TestGitCannotReachPrivateAddresses checks that git's own connections are also verified: a server at a public address
// cannot redirect git to a private one.
func TestGitCannotReachPrivateAddresses(t *testing.T) {
	u := newUpstream(t, object.SHA1)
	u.commit(t, "main")
	n := newNode(t, t.TempDir(), "public", Options{})
	a := &attempt{Importer: n.Importer, m: &records.Import{RepoID: "x"}, dir: filepath.Join(t.TempDir(), "g"),
		repo: records.Repo{ObjectFormat: "sha1"}}
	base := t.TempDir()
	gittest.Must(t, base, "init", "-q", "--bare", ".")
	if err := os.WriteFile(filepath.Join(base, "packed-refs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.prepare(t.Context(), base); err != nil {
		t.Fatal(err)
	}
	at, _ := url.Parse(u.url)
	n.pace.save = time.Hour // the progress is never recorded
	if err := a.fetch(t.Context(), found{url: at}, credentials{}); !errors.Is(err, errGit) {
		t.Errorf("fetch from a private address: got %v, want a failure of git", err)
	}
	if n := len(u.Log().Requests()); n != 0 {
		t.Errorf("the private server got %d requests", n)
	}
}

func TestImportsAreLimited(t *testing.T) {
	dir := t.TempDir()
	u := newUpstream(t, object.SHA1)
	if _, err := u.repo.Sized(2, 200); err != nil {
		t.Fatal(err)
	}
	small := newNode(t, dir, "small", Options{MaxBytes: 2000})
	r := small.create(t, "r", "sha1")
	if err := small.Start(t.Context(), r, Request{URL: u.url}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	if err := small.Start(t.Context(), r, Request{URL: u.url}, records.Cause{}); !errors.Is(err, ErrBusy) {
		t.Errorf("second import at the same time: got %v, want ErrBusy", err)
	}
	if s := small.end(t, r); s.State != Failed || !strings.Contains(s.Error, egress.ErrTooMuch.Error()) {
		t.Errorf("import of too many bytes: %+v", s)
	}
	small.Close()
	full := newNode(t, dir, "full", Options{})
	full.o.Quotas = quota.New(full.o.Records, quota.Limits{Amounts: records.Amounts{Bytes: 1000}})
	if err := full.Start(t.Context(), r, Request{URL: u.url}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	if s := full.end(t, r); s.State != Failed || s.Error != "the namespace would exceed its quota of 1000 bytes" {
		t.Errorf("import over the quota: %+v", s)
	}
	large := newUpstream(t, object.SHA1)
	if _, err := large.repo.Commit("main", map[string]gittest.File{"f": {Data: []byte("f")}},
		strings.Repeat("large ", 200_000)); err != nil {
		t.Fatal(err)
	}
	full.o.Quotas = nil
	if err := full.Start(t.Context(), r, Request{URL: large.url}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	if s := full.end(t, r); s.State != Failed || !strings.Contains(s.Error, "bytes, and can have 1048576") {
		t.Errorf("import of a large commit: %+v", s)
	}
	full.Close()
	stall := u.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, After: 1000})
	defer stall.Remove()
	slow := newNode(t, dir, "slow", Options{MaxTime: 300 * time.Millisecond})
	if err := slow.Start(t.Context(), r, Request{URL: u.url}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	if s := slow.end(t, r); s.State != Failed || s.Error != errTime.Error() {
		t.Errorf("import that takes too long: %+v", s)
	}
}

func TestTemporaryFailuresAreRepeated(t *testing.T) {
	u := newUpstream(t, object.SHA1)
	u.commit(t, "main")
	cut := u.Inject(gittest.Fault{Kind: gittest.Cut, On: gittest.Fetch, After: 100, Times: 1})
	down := u.Inject(gittest.Fault{Kind: gittest.Status, On: gittest.Capabilities, Times: 1})
	n := newNode(t, t.TempDir(), "n", Options{Meter: meter.New(nil, nil, zap.NewNop())})
	r := n.create(t, "r", "sha1")
	n.succeed(t, r, Request{URL: u.url})
	if cut.Hits() != 1 || down.Hits() != 1 {
		t.Errorf("%d and %d faults", cut.Hits(), down.Hits())
	}
	n.fsck(t, r.ID)
	u.Inject(gittest.Fault{Kind: gittest.CorruptPack, GoodTrailer: true, On: gittest.Fetch})
	u.commit(t, "main")
	before := n.refs(t, r.ID)
	if err := n.Start(t.Context(), r, Request{}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	if s := n.end(t, r); s.State != Failed {
		t.Errorf("import of a corrupt pack: %+v", s)
	}
	if !maps.Equal(before, n.refs(t, r.ID)) {
		t.Error("a failed import has changed refs")
	}
	n.fsck(t, r.ID)
}

func TestADeletedRepositoryEndsItsImport(t *testing.T) {
	u := newUpstream(t, object.SHA1)
	u.commit(t, "main")
	stall := u.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, After: 50})
	defer stall.Remove()
	n := newNode(t, t.TempDir(), "n", Options{})
	r := n.create(t, "r", "sha1")
	if err := n.Start(t.Context(), r, Request{URL: u.url}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "git fetches", func() bool { return stall.Hits() > 0 })
	if limited := n.limited(t); limited < 2 { // git fetch and its remote helper
		t.Errorf("%d processes have a limit of memory", limited)
	}
	if err := n.db.Repos.Delete(t.Context(), r.ID, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the import has ended", func() bool { return n.Running() == 0 })
}

// TestAnotherNodeContinues checks that if a node is killed or closed during an import, another node continues it.
func TestAnotherNodeContinues(t *testing.T) {
	dir := t.TempDir()
	u := newUpstream(t, object.SHA1)
	u.commit(t, "main")
	n := newNode(t, dir, "n", Options{})
	n.Close() // this node was only needed to create the repository
	r := n.create(t, "r", "sha1")
	stall := u.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch, After: 50})
	if err := n.Start(t.Context(), r, Request{URL: u.url}, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.Command(self)
	victim.Env = append(os.Environ(), "IMPORTS_TEST_NODE="+dir)
	victim.Stdout, victim.Stderr = os.Stderr, os.Stderr
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the first node fetches", func() bool { return stall.Hits() > 0 })
	victim.Process.Kill()
	victim.Wait()
	second := newNode(t, dir, "second", Options{})
	await.Until(t, "the second node fetches", func() bool { return stall.Hits() > 1 })
	second.Close()
	if s, err := second.Status(t.Context(), r); err != nil || s.State != Queued {
		t.Errorf("status after the second node was closed: %+v, %v", s, err)
	}
	stall.Remove()
	third := newNode(t, dir, "third", Options{})
	if s := third.end(t, r); s.State != Succeeded {
		t.Errorf("status %+v", s)
	}
	third.fsck(t, r.ID)
}
