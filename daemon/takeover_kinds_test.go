package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/gittest"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

func TestReadOnlyMountsOutliveTheirProcess(t *testing.T) {
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
	if got := k.sh(plain, "cat README.md dir1/file1.txt; git status --porcelain; touch x 2>&1 || true"); !strings.HasPrefix(got, "read me\ncontent 1\n") || !strings.Contains(got, "Read-only") {
		t.Errorf("of a commit: %q", got)
	}
	if got := k.sh(seen, "cat mine; ls"); got != "mine\ndir0\ndir1\ndir2\ndir3\nmine\n" {
		t.Errorf("of a session: %q", got)
	}
	if st := k.status(plain); !st.ReadOnly || st.Session.Name != "" {
		t.Errorf("status %+v", st)
	}
	k.unmount(plain)
	k.unmount(seen)
	if reply := k.mount(k.request(repo.Path, session)); !reply.Resumed || reply.Changed != 2 {
		t.Errorf("the session: %+v", reply)
	}
	k.unmount(session)
}

func TestSubmodulesAndRedirectsOutliveTheirProcess(t *testing.T) {
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
	if got := k.sh(dir, "cat sub/README.md sub/x node_modules/big; mkdir later; echo two >later/two; git status --porcelain"); !strings.HasPrefix(got, "read me\nx\nbig\n") {
		t.Errorf("after the takeover: %q", got)
	}
	st := k.status(dir)
	for _, d := range st.Redirects {
		if !d.Active {
			t.Errorf("%s is not redirected any more", d.Path)
		}
		if n, _ := os.ReadDir(d.Target); len(n) != 1 {
			t.Errorf("%s: %d files there", d.Target, len(n))
		}
	}
	if sub := k.status(filepath.Join(dir, "sub")); sub.Around != dir || sub.State != control.StateMounted || len(st.Redirects) != 2 {
		t.Errorf("the submodule: %+v of %+v", sub, st)
	}
	if reply := k.unmount(dir); len(reply.Submodules) != 1 || reply.Submodules[0].Kept != 1 {
		t.Errorf("unmounted %+v", reply)
	}
}

// A directory to be redirected that is made while processes die is redirected before anybody gets into it.
func TestRedirectsMadeUnderKills(t *testing.T) {
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
		made <- k.sh(dir, "for i in $(seq 0 59); do d=dir$((i % 4))/out$i; mkdir $d; echo $i >$d/file; done; cat dir*/out*/file | sort -n")
	}()
	kills := 0
	for over := false; !over; {
		select {
		case got := <-made:
			if n := strings.Count(got, "\n"); n != 60 {
				t.Errorf("%d files are seen: %q", n, got)
			}
			over = true
		case <-time.After(rand.N(20 * time.Millisecond)):
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
			t.Errorf("%s: active %v, %d files there", d.Path, d.Active, len(files))
		}
	}
	k.unmount(dir)
}

func TestATakeoverNeedsNoRemote(t *testing.T) {
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
	if got := k.sh(dir, "cat dir1/file1.txt dir2/file2.txt; git status --porcelain"); got != "changed\ncontent 2\n M dir1/file1.txt\n" {
		t.Errorf("without the remote: %q", got)
	}
	if st := k.status(dir); st.State != control.StateMounted || st.History != control.HistoryComplete {
		t.Errorf("status %+v", st)
	}
	k.unmount(dir)
}

// A remote that takes connections and says nothing, and trees that had not all come.
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
		t.Fatalf("%v: no packs", err)
	}
	k.kill()
	for _, p := range packs {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	refs, _ := filepath.Glob(filepath.Join(k.state, "stores", "*", "git", "packed-refs"))
	for _, p := range refs { // as if history had never come
		os.Remove(p)
	}
	server.Down()
	k.start()
	k.await()
	start := time.Now()
	k.sh(dir, "stat . >/dev/null")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the root took %v", took)
	}
	if err := server.Up(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "trees", func() bool { return k.status(dir).Tree.Complete })
	if got := k.sh(dir, "cat dir3/file3.txt"); got != "content 3\n" {
		t.Errorf("in the end: %q", got)
	}
	k.unmount(dir)
}

func TestUnmountedWhileNobodyServes(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	repo := sample(t, k.dir("remote"))
	dir, other := k.dir("mnt"), k.dir("other")
	k.mount(k.request(repo.Path, dir))
	k.mount(k.request(repo.Path, other))
	k.sh(dir, "echo 1 >new; sync -f .")
	k.kill()
	for _, d := range []string{dir, other} {
		if err := unix.Unmount(d, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	// What is detached is there until the last process lets go of its device, and so would be the next.
	eventually(t, "nothing kept", func() bool {
		k.start()
		k.await()
		st, err := k.client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Mounts) == 0 {
			return true
		}
		k.kill()
		return false
	})
	if reply := k.mount(k.request(repo.Path, dir)); !reply.Resumed || reply.Changed != 1 {
		t.Errorf("mounted again: %+v", reply)
	}
	k.unmount(dir)
	if homes, _ := os.ReadDir(filepath.Join(k.state, "mounts")); len(homes) != 1 {
		t.Errorf("homes: %v", homes)
	}
}

func TestAMountThatIsBeingMadeIsMadeAgain(t *testing.T) {
	k := newKeep(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	k.start()
	k.await()
	dir := k.dir("mnt")
	repo := sample(t, k.dir("remote"))
	r := k.request("http://"+l.Addr().String()+"/x.git", dir)
	r.Timeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	go func() {
		_, err := k.client.Mount(ctx, r, nil)
		answer <- err
	}()
	eventually(t, "it is being made", func() bool {
		st, err := k.client.Status(t.Context())
		return err == nil && len(st.Mounts) == 1 && len(k.names()) > 1
	})
	k.kill()
	cancel()
	<-answer
	k.start()
	k.await()
	if reply := k.mount(k.request(repo.Path, dir)); reply.Dir != dir {
		t.Errorf("mounted: %+v", reply)
	}
	// The same asker gets the same mount.
	again := k.request(repo.Path, k.dir("again"))
	again.Nonce = "once"
	first := k.mount(again)
	k.again()
	second := k.mount(again)
	if first.ID != second.ID || first.Commit != second.Commit || first.Session != second.Session {
		t.Errorf("%+v, and then %+v", first, second)
	}
	again.Nonce = "another"
	if _, err := k.client.Mount(t.Context(), again, nil); err == nil {
		t.Error("somebody else got a mount that is there")
	}
	k.unmount(dir)
	k.unmount(again.Dir)
}

func TestAMountThatCannotBeTakenOverIsGivenUp(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	repo := sample(t, k.dir("remote"))
	good, bad := k.dir("good"), k.dir("bad")
	k.mount(k.request(repo.Path, good))
	reply := k.mount(k.request(repo.Path, bad))
	k.sh(bad, "echo mine >mine; sync mine")
	k.kill()
	log := filepath.Join(k.state, "mounts", reply.Session, "overlay", "log")
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, []byte("not a log at all, but long enough to be read as one"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.start()
	k.await()
	eventually(t, "given up", func() bool { return k.status(bad).State == control.StateFailed })
	if st := k.status(bad); st.Error == "" || st.Session.Name != reply.Session {
		t.Errorf("status %+v", st)
	}
	if _, err := deviceOf(bad); err == nil {
		t.Error("it is mounted")
	}
	k.sh(good, "cat README.md")
	if err := os.WriteFile(log, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var said []string
	r := k.request(repo.Path, bad)
	if _, err := k.client.Mount(t.Context(), r, func(p control.Progress) { said = append(said, p.Message) }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(said, "\n"), "the mount that was here ended") {
		t.Errorf("said: %q", said)
	}
	if got := k.sh(bad, "cat mine"); got != "mine\n" {
		t.Errorf("the work: %q", got)
	}
	k.unmount(bad)
	k.unmount(good)
}

func TestGivingUpLeavesNothingMounted(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	repo, dir := sample(t, k.dir("remote")), k.dir("mnt")
	k.mount(k.request(repo.Path, dir))
	k.sh(dir, "echo 1 >new")
	k.kill()
	var kept []keeper.Kept
	for name, f := range k.kept {
		kept = append(kept, keeper.Kept{Name: name, File: f})
	}
	if err := GiveUp(k.state, kept, "it died ten times", zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	clear(k.kept)
	if _, err := deviceOf(dir); err == nil {
		t.Error("it is mounted")
	}
	k.start()
	k.await()
	if st := k.status(dir); st.State != control.StateFailed || st.Error != "it died ten times" {
		t.Errorf("status %+v", st)
	}
	if _, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir}); err != nil {
		t.Errorf("forget it: %v", err)
	}
	if reply := k.mount(k.request(repo.Path, dir)); !reply.Resumed || reply.Changed != 1 {
		t.Errorf("mounted again: %+v", reply)
	}
	k.unmount(dir)
}

// As after the machine was started anew: nothing is kept, and nothing mounted.
func TestRegisteredMountsAreRestored(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	server, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(k.state)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	repo := sample(t, k.dir("remote"))
	work, idle, ended := k.dir("work"), k.dir("idle"), k.dir("ended")
	secret := strings.Replace(server.URL("remote"), "//", "//me:sesame@", 1)
	k.mount(k.request(secret, work))
	r := k.request(server.URL("remote"), idle)
	r.ReadOnly = true
	first := k.mount(r)
	k.mount(k.request(server.URL("remote"), ended))
	k.sh(work, "echo 1 >new")
	k.unmount(ended)
	if _, err := repo.Commit("main", map[string]gittest.File{"later": {Data: []byte("x")}}, "later"); err != nil {
		t.Fatal(err)
	}
	k.kill()
	var kept []keeper.Kept
	for name, f := range k.kept {
		kept = append(kept, keeper.Kept{Name: name, File: f})
	}
	if err := GiveUp(k.state, kept, "power cut", zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	clear(k.kept)
	if err := os.RemoveAll(filepath.Join(k.state, "failed")); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(k.state, "registry", "*"))
	if len(files) != 2 {
		t.Errorf("registered: %v", files)
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err != nil || strings.Contains(string(text), "sesame") {
			t.Errorf("%s: %v: %s", f, err, text)
		}
	}
	server.Down()
	d, err := New(Config{State: k.state, Log: zap.NewNop(), Keeper: keepNothing{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Remount(t.Context()); err != nil {
		t.Fatal(err)
	}
	st, err := d.Status(t.Context())
	if err != nil || len(st.Mounts) != 2 || st.Mounts[0].Dir != idle || st.Mounts[0].Commit != first.Commit || !st.Mounts[0].ReadOnly || st.Mounts[1].Overlay.Changed != 1 {
		t.Errorf("restored: %v, %+v", err, st.Mounts)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if files, _ := filepath.Glob(filepath.Join(k.state, "registry", "*")); len(files) != 2 {
		t.Errorf("registered after a daemon's end: %v", files)
	}
}

type keepNothing struct{}

func (keepNothing) Keep(string, *os.File) error { return nil }
func (keepNothing) Drop(string) error           { return nil }

func TestStateFileIsWholeAtAnyMoment(t *testing.T) {
	s, err := newStateFile(handover{ID: "first"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.file.Close()
	for i := range 5 {
		if err := s.update(func(h *handover) { h.ID = fmt.Sprint(i); h.Request.Token = "secret" }); err != nil {
			t.Fatal(err)
		}
		again, err := openStateFile(s.file)
		if err != nil || again.get().ID != fmt.Sprint(i) || again.get().Request.Token != "secret" {
			t.Fatalf("%v, %+v", err, again.get())
		}
		// Killed at any byte of the next one.
		next := int64(again.number+1) % 2 * slotSize
		slot := make([]byte, 4096)
		if _, err := s.file.ReadAt(slot, next); err != nil && i > 0 && !errors.Is(err, os.ErrNotExist) {
			t.Log(err)
		}
		for cut := 0; cut < 200; cut += 7 {
			torn := append([]byte(nil), slot...)
			for at := cut; at < 200; at++ {
				torn[at] ^= 0x55
			}
			if _, err := s.file.WriteAt(torn, next); err != nil {
				t.Fatal(err)
			}
			if got, err := openStateFile(s.file); err != nil || got.get().ID != fmt.Sprint(i) {
				t.Fatalf("torn at %d: %v, %+v", cut, err, got)
			}
		}
	}
	empty, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if _, err := openStateFile(empty); !errors.Is(err, errNoState) {
		t.Errorf("of an empty file: %v", err)
	}
}

// A git command asks for an object, or what has changed, of a process that dies over it.
func TestGitCommandsInFlightComeOutRight(t *testing.T) {
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
	r.Prefetch, r.Wait, r.History = control.PrefetchNone, control.WaitGit, control.HistoryFull
	k.mount(r)
	s := k.talk(dir)
	for i, what := range []string{"git cat-file -p HEAD~1:README.md", "git cat-file -p HEAD:dir1/file1.txt"} {
		fault := server.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch})
		s.begin(what)
		eventually(t, "git asks", func() bool { return fault.Hits() > 0 })
		k.kill()
		fault.Remove()
		k.start()
		k.await()
		if got, want := s.end(what), []string{"older", "content 1"}[i]; got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	// Sockets are there at every moment: whoever asks while nobody serves waits.
	k.sh(dir, "echo new >>README.md")
	k.kill()
	s.begin("git status --porcelain")
	k.start()
	k.await()
	if got := s.end("git status"); got != " M README.md" {
		t.Errorf("status: %q", got)
	}
	s.close()
	k.unmount(dir)
}

// A switch whose process dies in its middle is finished by the next, and the kernel is told of all that changed.
func TestASwitchOutlivesItsProcess(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	repo := sample(t, k.dir("remote"))
	files, other := map[string]gittest.File{}, map[string]gittest.File{}
	for i := range 1500 {
		path := fmt.Sprintf("many%d/file%d", i%20, i)
		files[path] = gittest.File{Data: []byte(fmt.Sprintf("%d\n", i))}
		switch i % 4 {
		case 0:
			other[path] = gittest.File{Data: []byte(fmt.Sprintf("%d, and more\n", i))}
		case 1:
			other[path] = gittest.File{Delete: true}
			other[fmt.Sprintf("new%d/file%d", i%20, i)] = gittest.File{Data: []byte("new\n")}
		}
	}
	if _, err := repo.Commit("main", files, "many"); err != nil {
		t.Fatal(err)
	}
	if _, err := gittest.Git(t.Context(), repo.Path, "branch", "other", "main"); err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Commit("other", other, "others"); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, branch := range []string{"main", "other"} {
		list, err := gittest.Git(t.Context(), repo.Path, "ls-tree", "-r", "--name-only", branch)
		if err != nil {
			t.Fatal(err)
		}
		want[branch] = fmt.Sprint(len(strings.Fields(list)))
	}
	dir := k.dir("mnt")
	r := k.request(repo.Path, dir)
	r.Prefetch = control.PrefetchAll
	k.mount(r)
	for round := range 12 {
		to := []string{"other", "main"}[round%2]
		k.sh(dir, "find . -type f -size -1000 | wc -l") // the kernel has it all
		answer := make(chan error, 1)
		client := k.client
		go func() {
			_, err := client.Switch(t.Context(), control.SwitchRequest{Dir: dir, Ref: to}, nil)
			answer <- err
		}()
		eventually(t, "it is being done", func() bool {
			if len(answer) > 0 {
				return true
			}
			found, _ := filepath.Glob(filepath.Join(k.state, "mounts", "*", switchFile))
			return len(found) > 0
		})
		time.Sleep(time.Duration(round) * 3 * time.Millisecond) // the moment of death is what is tried
		k.again()
		if err := <-answer; err != nil && !errors.Is(err, control.ErrNoServer) { // the socket is made anew here
			t.Errorf("switch to %s: %v", to, err)
		}
		if _, err := k.client.Switch(t.Context(), control.SwitchRequest{Dir: dir, Ref: to}, nil); err != nil {
			t.Fatalf("switch to %s again: %v", to, err)
		}
		got := k.sh(dir, "git status --porcelain; git symbolic-ref --short HEAD; find . -type f ! -name .git | wc -l; cat many0/file0; ls new1 2>/dev/null | wc -l")
		content, fresh := "0\n", "0\n"
		if to == "other" {
			content, fresh = "0, and more\n", "75\n"
		}
		if got != to+"\n"+want[to]+"\n"+content+fresh {
			t.Errorf("round %d, to %s: %q", round, to, got)
		}
		k.sh(dir, "test \"$(git ls-files -s | git hash-object --stdin)\" = \"$(git ls-tree -r HEAD | sed 's/ blob / /; s/\\([0-7]*\\) \\([0-9a-f]*\\)\\t/\\1 \\2 0\\t/' | git hash-object --stdin)\"; git diff --quiet HEAD")
	}
	k.unmount(dir)
}

// A process dies while it makes the git directory, at any moment of that.
func TestAGitDirectoryIsMadeAllTheSame(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	repo := sample(t, k.dir("remote"))
	files := map[string]gittest.File{}
	for i := range 20_000 {
		files[fmt.Sprintf("many%d/file%d", i%100, i)] = gittest.File{Data: []byte(fmt.Sprintf("%d\n", i%50))}
	}
	if _, err := repo.Commit("main", files, "many"); err != nil {
		t.Fatal(err)
	}
	dir := k.dir("mnt")
	for round := range 15 {
		r := k.request(repo.Path, dir)
		r.Wait, r.Prefetch = control.WaitTree, control.PrefetchNone
		k.mount(r)

		if round%3 == 0 {
			eventually(t, "the index is being written", func() bool {
				found, err := filepath.Glob(filepath.Join(k.state, "mounts", "mnt-*", "git", "index*"))
				return err == nil && len(found) > 0
			})
		}
		time.Sleep(time.Duration(round) * 2 * time.Millisecond) // the moment of death is what is tried
		k.again()
		if got := k.sh(dir, "git status --porcelain; git log --oneline | wc -l; git reflog | wc -l"); got != "3\n1\n" {
			t.Fatalf("round %d: %q", round, got)
		}
		if reply := k.unmount(dir); reply.Kept != 0 || reply.Session != "" {
			t.Errorf("round %d: work was found: %+v", round, reply)
		}
	}
}

// Mounting and unmounting, with a death at any moment of either: who asks again gets what he asked for, once.
func TestMountAndUnmountAreDoneOnce(t *testing.T) {
	k := newKeep(t)
	k.start()
	k.await()
	repo, dir := sample(t, k.dir("remote")), k.dir("mnt")
	asked := func(round int, what string, ask func(*control.Client) error) {
		t.Helper()
		answer := make(chan error, 1)
		client := k.client
		go func() { answer <- ask(client) }()
		time.Sleep(time.Duration(round) * 1500 * time.Microsecond) // the moment of death is what is tried
		k.again()
		err := <-answer
		if errors.Is(err, control.ErrNoServer) { // the socket is made anew here
			err = ask(k.client)
		}
		if err != nil {
			t.Fatalf("round %d: %s: %v", round, what, err)
		}
	}
	for round := range 24 {
		r := k.request(repo.Path, dir)
		r.Nonce, r.Wait = fmt.Sprint("mount ", round), []control.Wait{control.WaitTree, control.WaitGit}[round%2]
		var reply control.MountReply
		asked(round, "mount", func(c *control.Client) (err error) {
			reply, err = c.Mount(t.Context(), r, nil)
			return err
		})
		if reply.Dir != dir || reply.Commit == "" || reply.Changed != int64(round) {
			t.Fatalf("round %d: mounted %+v", round, reply)
		}
		k.sh(dir, fmt.Sprintf("test $(ls | grep -c work) = %d; echo %d >work%d; git status --porcelain >/dev/null", round, round, round))
		asked(round, "unmount", func(c *control.Client) error {
			reply, err := c.Unmount(t.Context(), control.UnmountRequest{Dir: dir})
			if e := (*control.Error)(nil); errors.As(err, &e) && e.Code == control.ExitNotMounted {
				return nil // it was answered, or about to be
			}
			if err == nil && reply.Kept != int64(round+1) && reply.Session != "" {
				return fmt.Errorf("it says that %d paths were kept", reply.Kept)
			}
			return err
		})
		if _, err := deviceOf(dir); err == nil {
			t.Fatalf("round %d: it is mounted", round)
		}
		eventually(t, "nothing is kept", func() bool { return len(k.names()) == 0 })
	}
}
