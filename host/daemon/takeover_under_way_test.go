package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestAMountThatIsBeingMadeIsMadeAgain(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
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
	await.Until(t, "the mount is being made", func() bool {
		st, err := k.client.Status(t.Context())
		return err == nil && len(st.Mounts) == 1 && len(k.names()) > 1
	})
	k.kill()
	cancel()
	<-answer
	k.start()
	k.await()
	if reply := k.mount(k.request(repo.Path, dir)); reply.Dir != dir {
		t.Errorf("reply of mount: got %+v", reply)
	}
	// A repeated request with the same nonce returns the same mount.
	again := k.request(repo.Path, k.dir("again"))
	again.Nonce = "once"
	first := k.mount(again)
	k.again()
	second := k.mount(again)
	if first.ID != second.ID || first.Commit != second.Commit || first.Session != second.Session {
		t.Errorf("replies to the same request: got %+v, then %+v", first, second)
	}
	again.Nonce = "another"
	if _, err := k.client.Mount(t.Context(), again, nil); err == nil {
		t.Error("a request with another nonce for the mounted directory succeeded")
	}
	k.unmount(dir)
	k.unmount(again.Dir)
}

// TestGitCommandsInFlightComeOutRight kills the worker before it answers a git command that queries objects or changed
// paths. The successor must answer.
func TestGitCommandsInFlightComeOutRight(t *testing.T) {
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
	r.Prefetch, r.Wait, r.History = control.PrefetchNone, control.WaitGit, control.HistoryFull
	k.mount(r)
	s := k.talk(dir)
	for i, what := range []string{"git cat-file -p HEAD~1:README.md", "git cat-file -p HEAD:dir1/file1.txt"} {
		fault := server.Inject(gittest.Fault{Kind: gittest.Stall, On: gittest.Fetch})
		s.begin(what)
		await.Until(t, "git has sent its query", func() bool { return fault.Hits() > 0 })
		k.kill()
		fault.Remove()
		k.start()
		k.await()
		if got, want := s.end(what), []string{"older", "content 1"}[i]; got != want {
			t.Errorf("output of %s: got %q, want %q", what, got, want)
		}
	}
	// The sockets exist at every moment: a client that connects during a takeover waits for the successor.
	k.sh(dir, "echo new >>README.md")
	k.kill()
	s.begin("git status --porcelain")
	k.start()
	k.await()
	if got := s.end("git status"); got != " M README.md" {
		t.Errorf("git status: got %q", got)
	}
	s.close()
	k.unmount(dir)
}

// TestASwitchOutlivesItsProcess kills the worker during a switch. The successor must finish the switch and invalidate
// all changed entries in the kernel.
func TestASwitchOutlivesItsProcess(t *testing.T) {
	t.Parallel()
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
		k.sh(dir, "find . -type f -size -1000 | wc -l") // the kernel caches all entries
		answer := make(chan error, 1)
		client := k.client
		go func() {
			_, err := client.Switch(t.Context(), control.SwitchRequest{Dir: dir, Ref: to}, nil)
			answer <- err
		}()
		await.Until(t, "the switch has started", func() bool {
			if len(answer) > 0 {
				return true
			}
			found, _ := filepath.Glob(filepath.Join(k.state, "mounts", "*", intentFile))
			return len(found) > 0
		})
		time.Sleep(time.Duration(round) * 3 * time.Millisecond) // kill at different moments
		k.again()
		// this keeper creates a new socket for each daemon
		if err := <-answer; err != nil && !errors.Is(err, control.ErrNoServer) {
			t.Errorf("switch to %s: %v", to, err)
		}
		if _, err := k.client.Switch(t.Context(), control.SwitchRequest{Dir: dir, Ref: to}, nil); err != nil {
			t.Fatalf("switch to %s again: %v", to, err)
		}
		got := k.sh(dir,
			"git status --porcelain; git symbolic-ref --short HEAD; find . -type f ! -name .git | wc -l; cat many0/file0; ls new1 2>/dev/null | wc -l")
		content, fresh := "0\n", "0\n"
		if to == "other" {
			content, fresh = "0, and more\n", "75\n"
		}
		if got != to+"\n"+want[to]+"\n"+content+fresh {
			t.Errorf("round %d, switch to %s: got %q", round, to, got)
		}
		k.sh(dir,
			"test \"$(git ls-files -s | git hash-object --stdin)\" = \"$(git ls-tree -r HEAD | sed 's/ blob / /; s/\\([0-7]*\\) \\([0-9a-f]*\\)\\t/\\1 \\2 0\\t/' | git hash-object --stdin)\"; git diff --quiet HEAD")
	}
	k.unmount(dir)
}

// TestAGitDirectoryIsMadeAllTheSame kills the worker at different moments while it creates the git directory. The
// successor must complete the git directory.
func TestAGitDirectoryIsMadeAllTheSame(t *testing.T) {
	t.Parallel()
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
			await.Until(t, "the index is being written", func() bool {
				found, err := filepath.Glob(filepath.Join(k.state, "mounts", "mnt-*", "git", "index*"))
				return err == nil && len(found) > 0
			})
		}
		time.Sleep(time.Duration(round) * 2 * time.Millisecond) // kill at different moments
		k.again()
		if got := k.sh(dir, "git status --porcelain; git log --oneline | wc -l; git reflog | wc -l"); got != "3\n1\n" {
			t.Fatalf("round %d: git commands printed %q", round, got)
		}
		if reply := k.unmount(dir); reply.Kept != 0 || reply.Session != "" {
			t.Errorf("round %d: unmount reports changes: %+v", round, reply)
		}
	}
}

// TestMountAndUnmountAreDoneOnce kills the worker at different moments of mounting and unmounting. A repeated request
// must succeed and take effect once.
func TestMountAndUnmountAreDoneOnce(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	repo, dir := sample(t, k.dir("remote")), k.dir("mnt")
	asked := func(round int, what string, ask func(*control.Client) error) {
		t.Helper()
		answer := make(chan error, 1)
		client := k.client
		go func() { answer <- ask(client) }()
		time.Sleep(time.Duration(round) * 1500 * time.Microsecond) // kill at different moments
		k.again()
		err := <-answer
		if errors.Is(err, control.ErrNoServer) { // this keeper creates a new socket for each daemon
			err = ask(k.client)
		}
		if err != nil {
			t.Fatalf("round %d: %s failed: %v", round, what, err)
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
			t.Fatalf("round %d: reply of mount: got %+v", round, reply)
		}
		k.sh(dir, fmt.Sprintf("test $(ls | grep -c work) = %d; echo %d >work%d; git status --porcelain >/dev/null", round,
			round, round))
		asked(round, "unmount", func(c *control.Client) error {
			reply, err := c.Unmount(t.Context(), control.UnmountRequest{Dir: dir})
			if e := (*control.Error)(nil); errors.As(err, &e) && e.Code == control.ExitNotMounted {
				return nil // the first request was carried out, or its answer was lost
			}
			if err == nil && reply.Kept != int64(round+1) && reply.Session != "" {
				return fmt.Errorf("unmount reports %d kept paths, want 0", reply.Kept)
			}
			return err
		})
		if _, err := mountpoint.DeviceOf(dir); err == nil {
			t.Fatalf("round %d: the directory is still mounted", round)
		}
		await.Until(t, "no descriptor is kept", func() bool { return len(k.names()) == 0 })
	}
}
