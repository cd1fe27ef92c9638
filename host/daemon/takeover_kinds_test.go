package daemon

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestReadOnlyMountsOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	repo := sample(t, k.dir("remote"))
	plain, session, seen := k.dir("plain"), k.dir("session"), k.dir("seen")
	r := k.request(repo.Path, plain)
	r.ReadOnly = true
	k.mount(r)
	work := k.mount(k.request(repo.Path, session))
	k.sh(session, "echo mine >mine; rm README.md")
	k.unmount(session)
	r = k.request(repo.Path, seen)
	r.ReadOnly, r.Session = true, work.Session
	k.mount(r)
	k.again()
	if got := k.sh(plain,
		"cat README.md dir1/file1.txt; git status --porcelain; touch x 2>&1 || true"); !strings.HasPrefix(got,
		"read me\ncontent 1\n") || !strings.Contains(got, "Read-only") {
		t.Errorf("file of a mount at a commit: got %q", got)
	}
	if got := k.sh(seen, "cat mine; ls"); got != "mine\ndir0\ndir1\ndir2\ndir3\nmine\n" {
		t.Errorf("file of a session's mount: got %q", got)
	}
	if st := k.status(plain); !st.ReadOnly || st.Session.Name != "" {
		t.Errorf("status: got %+v", st)
	}
	k.unmount(plain)
	k.unmount(seen)
	if reply := k.mount(k.request(repo.Path, session)); !reply.Resumed || reply.Changed != 2 {
		t.Errorf("reply of the session's unmount: got %+v", reply)
	}
	k.unmount(session)
}

func TestSubmodulesAndRedirectsOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	inner := sample(t, k.dir("inner"))
	outer, err := gittest.New(k.dir("outer"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	head, err := gittest.Git(t.Context(), inner.Path, "rev-parse", "main")
	if err != nil {
		t.Fatal(err)
	}
	_, err = outer.Commit("main", map[string]gittest.File{
		".gitmodules": {Data: []byte("[submodule \"sub\"]\n\tpath = sub\n\turl = ../inner\n")},
		"sub":         {Data: []byte(strings.TrimSpace(head)), Mode: "160000"},
		"a.txt":       {Data: []byte("a\n")},
	}, "outer")
	if err != nil {
		t.Fatal(err)
	}
	dir := k.dir("mnt")
	r := k.request(outer.Path, dir)
	r.Submodules, r.Redirects, r.RedirectsOnly = true, []string{"node_modules", "later"}, true
	k.mount(r)
	k.sh(dir, "mkdir node_modules; echo big >node_modules/big; cat sub/README.md; echo x >sub/x")
	k.again()
	if got := k.sh(dir,
		"cat sub/README.md sub/x node_modules/big; mkdir later; echo two >later/two; git status --porcelain"); !strings.HasPrefix(got, "read me\nx\nbig\n") {
		t.Errorf("files after the takeover: got %q", got)
	}
	st := k.status(dir)
	for _, d := range st.Redirects {
		if !d.Active {
			t.Errorf("directory %s is not redirected after the takeover", d.Path)
		}
		if n, _ := os.ReadDir(d.Target); len(n) != 1 {
			t.Errorf("files of the redirect %s: got %d", d.Target, len(n))
		}
	}
	if sub := k.status(filepath.Join(dir, "sub")); sub.SubmoduleOf != dir || sub.State != control.StateMounted ||
		len(st.Redirects) != 2 {
		t.Errorf("submodule after the takeover: got %+v of %+v", sub, st)
	}
	if reply := k.unmount(dir); len(reply.Submodules) != 1 || reply.Submodules[0].Kept != 1 {
		t.Errorf("reply of unmount: got %+v", reply)
	}
}

// TestRedirectsMadeUnderKills checks a directory that must be redirected and that is created while workers are killed.
// It must be redirected before a process can use it.
func TestRedirectsMadeUnderKills(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	repo := sample(t, k.dir("remote"))
	dir := k.dir("mnt")
	r := k.request(repo.Path, dir)
	r.RedirectsOnly = true
	for i := range 60 {
		r.Redirects = append(r.Redirects, fmt.Sprintf("dir%d/out%d", i%4, i))
	}
	k.mount(r)
	made := make(chan string, 1)
	go func() {
		made <- k.sh(dir,
			"for i in $(seq 0 59); do d=dir$((i % 4))/out$i; mkdir $d; echo $i >$d/file; done; cat dir*/out*/file | sort -n")
	}()
	kills := 0
	last := time.Now().Add(10 * time.Second) // after this time, no more workers are killed
	for over := false; !over; {
		pause := rand.N(20 * time.Millisecond)
		if time.Now().After(last) {
			pause = takeoverTime
		}
		select {
		case got := <-made:
			if n := strings.Count(got, "\n"); n != 60 {
				t.Errorf("got %d files in the redirected directories: %q", n, got)
			}
			over = true
		case <-time.After(pause):
			k.again()
			for k.status(dir).State != control.StateMounted {
				time.Sleep(time.Millisecond)
			}
			kills++
		}
	}
	t.Logf("%d kills", kills)
	for _, d := range k.status(dir).Redirects {
		if files, _ := os.ReadDir(d.Target); !d.Active || len(files) != 1 {
			t.Errorf("redirect %s: got active %v and %d files", d.Path, d.Active, len(files))
		}
	}
	k.unmount(dir)
}

func TestATakeoverNeedsNoRemote(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	server, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(k.state)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	sample(t, k.dir("remote"))
	dir := k.dir("mnt")
	r := k.request(server.URL("remote"), dir)
	r.Timeout = 2 * time.Second
	k.mount(r)
	k.sh(dir, "cat dir0/*; echo changed >dir1/file1.txt")
	server.Down()
	k.again()
	if got := k.sh(dir,
		"cat dir1/file1.txt dir2/file2.txt; git status --porcelain"); got != "changed\ncontent 2\n M dir1/file1.txt\n" {
		t.Errorf("file after a takeover without the remote: got %q", got)
	}
	if st := k.status(dir); st.State != control.StateMounted || st.History != control.HistoryComplete {
		t.Errorf("status: got %+v", st)
	}
	k.unmount(dir)
}

// TestATakeoverDoesNotWaitForTrees checks that a takeover succeeds while the remote accepts connections but sends
// nothing, and some trees are missing.
func TestATakeoverDoesNotWaitForTrees(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	server, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(k.state)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	sample(t, k.dir("remote"))
	dir := k.dir("mnt")
	r := k.request(server.URL("remote"), dir)
	r.Timeout = time.Second
	k.mount(r)
	packs, err := filepath.Glob(filepath.Join(k.state, "stores", "*", "git", "objects", "pack", "*"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("the store has no packs: %v", err)
	}
	k.kill()
	for _, p := range packs {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	refs, _ := filepath.Glob(filepath.Join(k.state, "stores", "*", "git", "packed-refs"))
	for _, p := range refs { // removes all refs, as if the history had never been fetched
		os.Remove(p)
	}
	server.Down()
	k.start()
	k.await()
	start := time.Now()
	k.sh(dir, "stat . >/dev/null")
	if took := time.Since(start); took > 20*time.Second { // the program starts slowly on a busy machine
		t.Errorf("listing the root took %v", took)
	}
	if err := server.Up(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "all trees are fetched", func() bool { return k.status(dir).Tree.Complete })
	if got := k.sh(dir, "cat dir3/file3.txt"); got != "content 3\n" {
		t.Errorf("files after all trees were fetched: got %q", got)
	}
	k.unmount(dir)
}
