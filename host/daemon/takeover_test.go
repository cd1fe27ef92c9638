package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/git/promisor"
	"github.com/artifactfs/artifactfs/host/mount/inotify"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

// These tests start the program of the tests as a daemon, kill it, and start a successor. Only other processes access
// files of a mount: if a process has such a file open, exec may wait for the daemon that the process is about to start.
// Each test has its own state directory and calls t.Parallel, unless it measures time.

const (
	workerState  = "ARTIFACTFS_TEST_STATE" // environment variable that makes the test program run as a daemon
	takeoverTime = 2 * time.Minute         // longest wait for another process; generous, machines are busy
)

func TestMain(m *testing.M) {
	switch {
	case query.IsHook(os.Args[0]):
		os.Exit(query.Hook(os.Args, os.Stdout))
	case inotify.IsProcess(os.Args): // the tested daemon raises the events of a change with this program
		os.Exit(inotify.Run(os.Args[1], os.Stdin))
	// git runs this program to fetch missing objects from the tested daemon
	case len(os.Args) > 2 && os.Args[1] == "upload-pack-helper":
		if promisor.Ask(context.Background(), os.Args[2], os.Getenv("GIT_PROTOCOL"), os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getenv(workerState) != "":
		if err := serveTest(os.Getenv(workerState)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := buildHook(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// buildHook builds the small program for git's fsmonitor hook beside the program of the tests, which is slower as a hook.
func buildHook() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Dir(self)+"/", "../../cmd/artifactfs-fsmonitor").
		CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the hook: %w\n%s", err, out)
	}
	return nil
}

// serveTest runs a daemon whose descriptors are kept by its parent process.
func serveTest(state string) error {
	conn, err := keeper.Open(3)
	if err != nil {
		return err
	}
	start, descriptors, err := conn.AwaitStart("test")
	if err != nil {
		return err
	}
	log := zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.Lock(os.Stderr),
		zap.DebugLevel))
	d, err := New(Config{State: state, Log: log, Keeper: conn, Descriptors: descriptors, Reason: start.Reason,
		Takeovers: start.Count})
	if err != nil {
		return err
	}
	server, err := control.Listen(context.Background(), control.DaemonSocket(state), d, log)
	if err != nil {
		return err
	}
	if err := conn.SendKey(keeper.Ready, "1"); err != nil {
		return err
	}
	go leaveNothing(conn, state)
	server.Serve(context.Background())
	return d.Close(context.Background())
}

// leaveNothing waits until the test process has ended, and then removes the mounts that a killed test has left.
func leaveNothing(conn *keeper.Conn, state string) {
	for {
		if _, _, err := conn.Receive(); err != nil {
			break
		}
	}
	table, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(table), "\n")
	slices.Reverse(lines) // a mount on top of another one is listed after it, and must be unmounted first
	for _, line := range lines {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], filepath.Dir(state)+"/") {
			unix.Unmount(f[4], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	os.Exit(1)
}

// testKeeper acts as the supervisor: it starts daemons for one state directory, and keeps their descriptors.
type testKeeper struct {
	t      *testing.T
	state  string
	env    []string
	client *control.Client

	cmd   *exec.Cmd
	ended chan error
	deaf  chan struct{} // closed when the kernel has closed the daemon's end of the connection
	log   *os.File

	mu    sync.Mutex
	kept  map[string]*os.File
	ready chan struct{}
}

func needMounts(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("/dev/fuse does not exist")
	}
}

func newKeep(t *testing.T) *testKeeper {
	t.Helper()
	needMounts(t)
	dir, err := os.MkdirTemp("", "afsd-") // t.TempDir is not used, because its paths are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	k := &testKeeper{t: t, state: filepath.Join(dir, "state"), kept: map[string]*os.File{}}
	if k.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer k.log.Close()
		k.kill()
		var descriptors []keeper.Descriptor
		for name, f := range k.kept {
			descriptors = append(descriptors, keeper.Descriptor{Name: name, File: f})
		}
		GiveUp(k.state, descriptors, "the test is over", zap.NewNop())
		if t.Failed() {
			t.Log("the daemons' log:\n" + k.said())
		}
		if table, err := os.ReadFile("/proc/self/mountinfo"); err == nil && bytes.Contains(table, []byte(dir)) {
			t.Errorf("still mounted:\n%s", table)
		}
		os.RemoveAll(dir)
	})
	return k
}

// said returns the end of the log of the daemons.
func (k *testKeeper) said() string {
	text, _ := os.ReadFile(k.log.Name())
	return string(text[max(0, len(text)-16<<10):])
}

// start starts a daemon and passes the kept descriptors to it.
func (k *testKeeper) start() {
	k.t.Helper()
	conn, peer, err := keeper.Pair()
	if err != nil {
		k.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), workerState+"="+k.state, "GOCOVERDIR="), k.env...)
	cmd.ExtraFiles = []*os.File{peer}
	cmd.Stderr = k.log
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	peer.Close()
	ended, ready, deaf := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() { ended <- cmd.Wait() }()
	k.mu.Lock()
	k.cmd, k.ended, k.ready, k.deaf = cmd, ended, ready, deaf
	for name, f := range k.kept {
		if err := conn.Send(keeper.Message{keeper.Name: name}, int(f.Fd())); err != nil {
			k.t.Error(err)
		}
	}
	k.mu.Unlock()
	if err := conn.Send(keeper.Start{Reason: "killed"}.Message()); err != nil {
		k.t.Fatal(err)
	}
	go k.hear(conn, ready, deaf)
}

func (k *testKeeper) hear(conn *keeper.Conn, ready, deaf chan struct{}) {
	defer close(deaf)
	defer conn.Close()
	for {
		m, fds, err := conn.Receive()
		if err != nil {
			return
		}
		k.mu.Lock()
		name := m[keeper.Name]
		switch {
		case m[keeper.Store] != "" && len(fds) == 1:
			if old := k.kept[name]; old != nil {
				old.Close()
			}
			k.kept[name] = os.NewFile(uintptr(fds[0]), name)
		case m[keeper.Remove] != "":
			if old := k.kept[name]; old != nil {
				old.Close()
				delete(k.kept, name)
			}
		case m[keeper.Ready] != "":
			close(ready)
		}
		k.mu.Unlock()
	}
}

func (k *testKeeper) await() {
	k.t.Helper()
	select {
	case <-k.ready:
	case err := <-k.ended:
		k.t.Fatalf("the daemon ended before it was ready: %v\n%s", err, k.said())
	case <-time.After(takeoverTime):
		k.t.Fatalf("the daemon is not ready\n%s", k.said())
	}
	client, err := control.Dial(k.t.Context(), control.DaemonSocket(k.state))
	if err != nil {
		k.t.Fatal(err)
	}
	k.client = client
}

// kill kills the daemon and waits, as a supervisor does, until the kernel has closed its files. A thread of the daemon
// may still wait for a mount that only the next daemon serves.
func (k *testKeeper) kill() {
	if k.cmd == nil {
		return
	}
	k.cmd.Process.Kill()
	k.cmd = nil
	select {
	case <-k.deaf:
	case <-time.After(takeoverTime):
		k.t.Error("the killed daemon did not end")
	}
}

// again kills the daemon and starts a successor.
func (k *testKeeper) again() {
	k.t.Helper()
	k.kill()
	k.start()
	k.await()
}

// names returns the names of the kept descriptors that belong to mounts.
func (k *testKeeper) names() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.kept {
		if _, p, ok := strings.Cut(name, "."); ok {
			names = append(names, p)
		}
	}
	slices.Sort(names)
	return names
}

func (k *testKeeper) dir(name string) string { return filepath.Join(filepath.Dir(k.state), name) }

func (k *testKeeper) request(remote, dir string) control.MountRequest {
	return control.MountRequest{
		Remote: remote, Dir: dir,
		MountFetch: control.MountFetch{History: control.HistoryBackground, Prefetch: control.PrefetchAuto,
			Wait: control.WaitAll},
	}
}

func (k *testKeeper) mount(r control.MountRequest) control.MountReply {
	k.t.Helper()
	reply, err := k.client.Mount(k.t.Context(), r, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	return reply
}

func (k *testKeeper) unmount(dir string) control.UnmountReply {
	k.t.Helper()
	reply, err := k.client.Unmount(k.t.Context(), control.UnmountRequest{Dir: dir})
	if err != nil {
		k.t.Fatal(err)
	}
	return reply
}

func (k *testKeeper) status(dir string) control.MountStatus {
	k.t.Helper()
	st, err := k.client.Status(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	for _, m := range st.Mounts {
		if m.Dir == dir {
			return m
		}
	}
	text, _ := json.Marshal(st)
	k.t.Fatalf("nothing is mounted at %s: %s", dir, text)
	return control.MountStatus{}
}

// sh runs a script and returns its output.
func (k *testKeeper) sh(dir, script string) string {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), takeoverTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", "cd \"$0\"; "+script, dir)
	cmd.Dir = "/"
	cmd.WaitDelay = 10 * time.Second // a busy machine may be slow to copy the output
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		k.t.Errorf("run %s: %v\n%s", script, err, out)
	}
	return string(out)
}

// talk is a shell that runs several commands one after the other.
type talk struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out chan string
}

func (k *testKeeper) talk(dir string) *talk {
	k.t.Helper()
	c := exec.Command("bash")
	c.Dir = "/"
	in, err := c.StdinPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		k.t.Fatal(err)
	}
	s := &talk{k.t, c, in, make(chan string, 1000)}
	go func() {
		defer close(s.out)
		var line []byte
		one := make([]byte, 1)
		for {
			if _, err := out.Read(one); err != nil {
				return
			}
			if one[0] == '\n' {
				s.out <- string(line)
				line = nil
				continue
			}
			line = append(line, one[0])
		}
	}()
	k.t.Cleanup(s.close)
	s.say("cd '" + dir + "'")
	return s
}

// say runs a command in the shell and returns the output of the command.
func (s *talk) say(command string) string {
	s.t.Helper()
	s.begin(command)
	return s.end(command)
}

func (s *talk) begin(command string) { fmt.Fprintf(s.in, "%s\necho =$?\n", command) }

func (s *talk) end(command string) string {
	s.t.Helper()
	var all []string
	for {
		select {
		case line, ok := <-s.out:
			if !ok {
				s.t.Fatalf("command %s: the shell has ended: %q", command, all)
			}
			if status, done := strings.CutPrefix(line, "="); done {
				if status != "0" {
					s.t.Errorf("command %s: exit status %s, output %q", command, status, all)
				}
				return strings.Join(all, "\n")
			}
			all = append(all, line)
		case <-time.After(takeoverTime):
			s.t.Fatalf("command %s: no output in time", command)
		}
	}
}

func (s *talk) close() {
	s.in.Close()
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// sample creates a repository with a few files.
func sample(t *testing.T, dir string) *gittest.Repo {
	t.Helper()
	repo, err := gittest.New(dir, gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]gittest.File{}
	for i := range 40 {
		files[fmt.Sprintf("dir%d/file%d.txt", i%4, i)] = gittest.File{Data: []byte(fmt.Sprintf("content %d\n", i))}
	}
	files["README.md"] = gittest.File{Data: []byte("read me\n")}
	files[".gitignore"] = gittest.File{Data: []byte("*.o\n")}
	for _, step := range []map[string]gittest.File{{"README.md": {Data: []byte("older\n")}}, files} {
		if _, err := repo.Commit("main", step, "a commit"); err != nil {
			t.Fatal(err)
		}
	}
	return repo
}

func TestAMountOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	repo, dir := sample(t, k.dir("remote")), k.dir("mnt")
	before := k.mount(k.request(repo.Path, dir))
	s := k.talk(dir)
	s.say("exec 3<README.md 4>>dir0/new 5<>dir1/gone; rm dir1/gone; echo one >&4; echo deleted >&5; mkdir -p made/deep; cd made/deep; exec 6<../../dir1; flock 6")
	inode := k.sh(dir, "stat -c %i README.md dir0/new made/deep")
	if got := k.sh(dir, "git status --porcelain"); got != "?? dir0/new\n" {
		t.Errorf("git status: got %q", got)
	}
	st := k.status(dir)
	for range 3 {
		k.again()
	}
	if got := s.say("cat <&3; echo two >&4; cat /proc/self/fd/5; pwd"); got != "read me\ndeleted\n"+dir+"/made/deep" {
		t.Errorf("open files after the takeover: got %q", got)
	}
	if got := k.sh(dir,
		"cat dir0/new dir2/file2.txt; stat -c %i README.md dir0/new made/deep"); got != "one\ntwo\ncontent 2\n"+inode {
		t.Errorf("inodes after the takeover: got %q, want %q", got, inode)
	}
	if got := k.sh(dir, "git status --porcelain; git log --oneline | wc -l"); got != "?? dir0/new\n2\n" {
		t.Errorf("git commands after the takeover: got %q", got)
	}
	after := k.status(dir)
	if after.State != control.StateMounted || !after.GitReady || after.History != st.History ||
		after.Session.Name != st.Session.Name ||
		!after.Since.Equal(st.Since) || after.Overlay.Changed != st.Overlay.Changed || after.PID == st.PID ||
		after.ID != before.ID {
		t.Errorf("status after the takeover:\n%+v\nwant\n%+v", after, st)
	}
	want := []string{"credential", "device", "fsmonitor", "lock", "promisor", "state"}
	await.Until(t, "the descriptors of the mount are kept", func() bool { return slices.Equal(k.names(), want) })
	if _, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir}); err == nil ||
		!strings.Contains(err.Error(), "bash") {
		t.Errorf("unmount of a busy mount: got %v", err)
	}
	s.close()
	if reply := k.unmount(dir); reply.Kept != 1+2 || reply.Session != before.Session {
		t.Errorf("reply of unmount: got %+v", reply)
	}
	await.Until(t, "no descriptor of the mount is kept", func() bool { return len(k.names()) == 0 })
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory that was created for the mount still exists: %v", err)
	}
}

// TestAnUnknownLogIsLeftToAnotherVersion checks a successor that does not know the version of the overlay's log. It
// must leave the mount and its kept descriptors unchanged, so that the previous version can continue.
func TestAnUnknownLogIsLeftToAnotherVersion(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	repo, dir := sample(t, k.dir("remote")), k.dir("mnt")
	reply := k.mount(k.request(repo.Path, dir))
	k.sh(dir, "echo changed >dir0/new")
	names := k.names()
	k.kill()
	log := filepath.Join(k.state, "mounts", reply.ID, "overlay", "log")
	header := make([]byte, 12)
	f, err := os.OpenFile(log, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(header, 0); err != nil {
		t.Fatal(err)
	}
	const version = 8 // offset of the version in the header
	if _, err := f.WriteAt([]byte{99}, version); err != nil {
		t.Fatal(err)
	}
	k.start()
	// Repeated attempts are logged as warnings, and only the last one as an error.
	await.Until(t, "the takeover ends", func() bool { return strings.Contains(k.said(), "ERROR") })
	if said := k.said(); strings.Contains(said, "abandon mount") || !strings.Contains(said, "version is 99") {
		t.Errorf("the successor did not leave the mount to another version:\n%s", said)
	}
	if got := k.names(); !slices.Equal(got, names) {
		t.Errorf("descriptors of the mount after a successor that refused it: got %q, want %q", got, names)
	}
	k.kill()
	if _, err := f.WriteAt(header[version:version+1], version); err != nil {
		t.Fatal(err)
	}
	k.start()
	k.await()
	if got := k.sh(dir, "cat dir0/new"); got != "changed\n" {
		t.Errorf("file after the previous version has continued: got %q", got)
	}
	k.unmount(dir)
}
