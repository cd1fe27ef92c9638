package promisor

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// served creates a repository with a history and serves it.
func served(t testing.TB, f object.Format) (*gittest.Repo, *gittest.Server) {
	t.Helper()
	root := t.TempDir()
	r, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{Format: f})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Sized(3, 20); err != nil {
		t.Fatal(err)
	}
	if _, err := r.History(60); err != nil {
		t.Fatal(err)
	}
	s, err := gittest.Serve(gittest.ServerOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return r, s
}

// want fails the test unless a command had the output out, and made the given numbers of queries and requests.
func (r result) want(t testing.TB, questions, requests int, out string) {
	t.Helper()
	if r.err != nil || r.questions != questions || r.requests != requests || r.out != out {
		t.Errorf("%s, want %d queries and %d requests; output is as expected: %v", r, questions, requests, r.out == out)
	}
}

func TestGitFetchesMissingObjects(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			r, s := served(t, f)
			c := newClone(t, s, "r.git")
			truth := func(args ...string) string {
				out, err := exec.Command("git", append([]string{"-C", r.Path}, args...)...).Output()
				if err != nil {
					t.Fatal(err)
				}
				return string(out)
			}
			one := []string{"cat-file", "-p", "main:d0001/f0003.txt"}
			first := c.try("", one...)
			first.want(t, 1, 1, truth(one...))
			if first.blobs < 2 {
				t.Error("no neighbours were fetched")
			}
			c.try("", one...).want(t, 0, 0, first.out)
			c.try("", "cat-file", "-p", "main:d0001/f0004.txt").want(t, 0, 0, truth("cat-file", "-p", "main:d0001/f0004.txt"))
			log := []string{"log", "-p", "-30"}
			c.try("", log...).want(t, 1, 1, truth(log...))
			blame := []string{"blame", "main", "--", "log.txt"}
			c.try("", blame...).want(t, 1, 1, truth(blame...))
			if found := packs(t, c.gitDir); len(found) > 1 {
				t.Errorf("answers left the packs %q", found)
			}
			if out := c.run(c.dir, "fsck"); strings.Contains(out, "error") || strings.Contains(out, "missing") {
				t.Error(out)
			}
		})
	}
}

// TestRenamedFileIsFollowed follows a file with three names, which was renamed in commits that also add and remove
// other files.
func TestRenamedFileIsFollowed(t *testing.T) {
	r, s := served(t, object.SHA1)
	var lines []byte
	for n, name := range []string{"one.txt", "two.txt", "dir/three.txt"} {
		for i := range 40 {
			lines = fmt.Appendf(lines, "%d %d\n", n, i)
			change := map[string]gittest.File{name: {Data: lines}}
			if i == 0 {
				change["new"+name] = gittest.File{Data: []byte("new " + name)}
				for _, old := range []string{"one.txt", "two.txt"}[:n] {
					change[old], change["new"+old] = gittest.File{Delete: true}, gittest.File{Delete: true}
				}
			}
			if _, err := r.Commit("main", change, "Line"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, args := range [][]string{
		{"blame", "main", "--", "dir/three.txt"}, {"log", "-p", "--follow", "main", "--", "dir/three.txt"},
		{"log", "-L1,2:dir/three.txt", "main"},
	} {
		c := newClone(t, s, "r.git")
		got := c.try("", args...)
		want, err := exec.Command("git", append([]string{"-C", r.Path}, args...)...).Output()
		if err != nil || got.err != nil || got.out != string(want) || got.questions > 5 || got.requests > 5 {
			t.Errorf("git %s: got %s; output is right: %v, %v", args[0], got, got.out == string(want), err)
		}
		t.Logf("%q: %d questions, %d blobs", args, got.questions, got.blobs)
	}
}

func TestGitAsksTheOriginWhenNobodyAnswers(t *testing.T) {
	r, s := served(t, object.SHA1)
	c := newClone(t, s, "r.git")
	if err := c.server.Close(); err != nil {
		t.Error(err)
	}
	got := c.try("", "cat-file", "-p", "main:log.txt")
	want, _ := exec.Command("git", "-C", r.Path, "cat-file", "-p", "main:log.txt").Output()
	got.want(t, 0, 1, string(want))
	if !strings.Contains(got.errs, "remote error: artifactfs: no daemon serves this mount") {
		t.Errorf("stderr of git: got %q", got.errs)
	}
}

func TestRemoteThatIsAwayIsAskedOnce(t *testing.T) {
	_, s := served(t, object.SHA1)
	c := newCloneWithin(t, s, "r.git", 2*time.Second) // the command waits for the remote several times
	s.Down()
	got := c.try("", "cat-file", "-p", "main:log.txt")
	if got.err == nil || got.questions != 1 || strings.Count(got.errs, "artifactfs: ") != 1 {
		t.Errorf("git while the remote is down: got %v, want an error after one question, reported once", got)
	}
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "git reads from the remote that is up again", func() bool {
		return c.try("", "cat-file", "-p", "main:log.txt").err == nil
	})
}

func TestUnknownObjectIsAnErrorOfGit(t *testing.T) {
	_, s := served(t, object.SHA1)
	c := newClone(t, s, "r.git")
	got := c.try("", "cat-file", "-p", strings.Repeat("1234", 10))
	if got.err == nil || got.questions != 1 || got.took > 30*time.Second {
		t.Error(got)
	}
}

// TestLooseObjectIsNotRequested checks the case that a git process has listed its loose objects before its child
// process created one, so that it requests this object together with others.
func TestLooseObjectIsNotRequested(t *testing.T) {
	r, s := served(t, object.SHA1)
	c := newClone(t, s, "r.git")
	id := func(text string) object.ID {
		id, err := object.ParseID(text)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if err := os.WriteFile(filepath.Join(c.dir, "own"), []byte("nobody else has this\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	own := id(c.run(c.dir, "hash-object", "-w", "own"))
	theirs := id(c.run(r.Path, "rev-parse", "main:d0001/f0003.txt"))
	if err := c.server.fetch(context.Background(), Hint{}, []object.ID{own, theirs}); err != nil {
		t.Error(err)
	}
	c.try("", "cat-file", "-p", theirs.String()).want(t, 0, 0, c.run(r.Path, "cat-file", "-p", theirs.String())+"\n")
}

func TestMissingCommitIsFetchedWithHistory(t *testing.T) {
	r, s := served(t, object.SHA1)
	c := newClone(t, s, "r.git")
	var id object.ID
	for i := range 3 {
		var err error
		if id, err = r.Commit("main", map[string]gittest.File{"later.txt": {Data: fmt.Appendf(nil, "%d\n", i)}},
			"Later"); err != nil {
			t.Fatal(err)
		}
	}
	got := c.try("", "log", "--oneline", id.String())
	if n := strings.Count(got.out, "\n"); got.err != nil || n != 64 {
		t.Errorf("got %d commits: %s", n, got)
	}
	if got.blobs > 0 {
		t.Errorf("a commit fetched %d blobs", got.blobs)
	}
}

func TestInterruptedGitEndsItsQuestion(t *testing.T) {
	_, s := served(t, object.SHA1)
	c := newClone(t, s, "r.git")
	s.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch})
	cmd := exec.Command("git", "cat-file", "-p", "main:log.txt")
	cmd.Dir = c.dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for len(s.Log().Fetches()) == 0 {
		time.Sleep(time.Millisecond)
	}
	cmd.Process.Kill()
	cmd.Wait()
	ended := make(chan struct{})
	go func() {
		c.server.Close()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the query did not end")
	}
}

// TestPredictionsDoNotFetch checks that git commands that are run to make predictions find missing objects and do not
// fetch them.
func TestPredictionsDoNotFetch(t *testing.T) {
	_, s := served(t, object.SHA1)
	c := newClone(t, s, "r.git")
	l := c.server.oracle.git
	ctx := context.Background()
	if err := l.update(ctx); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"cat-file", "-p", "main:log.txt"}, {"log", "-p", "-3", "main"}, {"diff-tree", "-r", "-p", "-M", "main~1", "main"},
		{"show", "main"},
		{"grep", "x", "main"}, {"archive", "main"},
	} {
		cmd := l.command(ctx, args...)
		var without []string
		for _, e := range cmd.Env { // git before 2.45 does not know the variable
			if !strings.HasPrefix(e, "GIT_NO_LAZY_FETCH=") {
				without = append(without, e)
			}
		}
		cmd.Env = append(without, "GIT_TRACE=2")
		out, err := cmd.CombinedOutput()
		if err == nil || bytes.Contains(out, []byte("git fetch")) || bytes.Contains(out, []byte(" fetch ")) {
			t.Errorf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if n := len(s.Log().Requests()); n > 0 || c.counted.questions > 0 {
		t.Errorf("got %d requests and %d queries", n, c.counted.questions)
	}
}

func TestHostileHintsDoNothing(t *testing.T) {
	_, s := served(t, object.SHA1)
	c := newClone(t, s, "r.git")
	victim := filepath.Join(t.TempDir(), "victim")
	for _, args := range [][]string{
		{"git", "log", "-p", "--output=" + victim}, {"git", "log", "-p", "--output", victim, "main"},
		{"git", "log", "--", "--output=" + victim},
		{"git", "archive", "main", "-o", victim}, {"git", "blame", "--contents", victim, "main", "--output=" + victim},
		{"git", "grep", "-O" + victim, "x", "main"},
		{"git", "rebase", "--exec", "touch " + victim, "main~3"}, {"git", "-c", "core.pager=touch " + victim, "log"}, {"git"},
		{""}, {}, {"git", "log", "-L"},
		{"git", "merge", "--output=" + victim}, {"git", "show", "--ext-diff", "-n"}, {"git", "cherry-pick", "--", "-x"},
		{"git", "log", "--", ":(bad"},
	} {
		c.server.oracle.predict(context.Background(),
			Hint{Commands: []Command{{Process: "1", Args: args, Dir: "/", Prefix: "../.."}}}, nil)
		if _, err := os.Lstat(victim); err == nil {
			t.Fatalf("git %q wrote a file", args)
		}
	}
}

func TestOldProtocolIsRefused(t *testing.T) {
	var out bytes.Buffer
	if err := Ask(context.Background(), t.TempDir(), "", strings.NewReader(""), &out); err == nil ||
		!strings.Contains(out.String(), "ERR artifactfs: ") {
		t.Errorf("ask with an old protocol: got %v and the answer %q, want an error packet", err, out.String())
	}
}

func TestOptionsLetOnlyHarmlessOnesThrough(t *testing.T) {
	a := walkOptions.parse([]string{"-p", "-20", "-n", "3", "--since", "1.week", "-Sx", "-S", "y", "--output=f", "main",
		"-U", "5", "--author=me", "--", "a", "-b"})
	if got := strings.Join(a.flags, " "); got != "-20 -n3 --since=1.week --author=me" {
		t.Errorf("parsed flags: got %q", got)
	}
	if got := strings.Join(a.plain, " ") + "|" + strings.Join(a.paths, " "); got != "main|a -b" {
		t.Errorf("parsed words: got %q", got)
	}
	if v, ok := a.value("-S"); v != "y" || !ok || !a.has("-p") || a.has("--stat") {
		t.Errorf("parsed value: got %q, %v", v, ok)
	}
}

func FuzzReadRequest(f *testing.F) {
	want := pktline.AppendLine(nil, "want "+strings.Repeat("ab", 20))
	f.Add(append(append(append(pktline.AppendLine(nil, "command=fetch"), "0001"...), want...), "0009done\n0000"...))
	f.Add([]byte("0014command=ls-refs\n0000"))
	f.Add([]byte("fff1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		q, err := readRequest(pktline.NewReader(bytes.NewReader(data), bufSize), object.SHA1)
		if err == nil && len(q.wants)*40 > len(data) {
			t.Errorf("parsed %d wants from %d bytes", len(q.wants), len(data))
		}
	})
}

func FuzzReadHint(f *testing.F) {
	var b bytes.Buffer
	writeHint(&b, Hint{Commands: []Command{{Process: "1-2", Args: []string{"git", "log"}, Dir: "/"}}})
	f.Add(b.Bytes())
	f.Add([]byte("\xff\xff\xff\xff{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readHint(bytes.NewReader(data))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if writeHint(&again, h); again.Len() == 0 {
			t.Error("no answer was written")
		}
	})
}

func FuzzReadChanges(f *testing.F) {
	id := strings.Repeat("ab", 20)
	f.Add([]byte("\x01" + id + "\x00\n:100644 100644 " + id + " " + id + " M\x00a/b\x00"))
	f.Add([]byte("::100644 100644 120000 " + id + " " + id + " " + id + " MM\x00:x\x00:000000 100644 " +
		strings.Repeat("0", 40) + " " + id + " A\x00y\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		err := readChanges(bufio.NewReader(bytes.NewReader(data)), func(string) error { return nil }, func(c change) error {
			if len(c.before) == 0 || c.status == "" {
				t.Errorf("parsed change: got %+v", c)
			}
			return nil
		})
		if err != nil && err != io.EOF {
			t.Error(err)
		}
	})
}
