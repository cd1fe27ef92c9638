package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

func TestUnmountedWhileNobodyServes(t *testing.T) {
	t.Parallel()
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
	// A detached mount exists until the last process has closed its device, so wait before the next mount.
	await.Until(t, "the next daemon has no mount", func() bool {
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
		t.Errorf("reply of the next mount: got %+v", reply)
	}
	k.unmount(dir)
	if homes, _ := os.ReadDir(filepath.Join(k.state, "mounts")); len(homes) != 1 {
		t.Errorf("directories below mounts/: got %v", homes)
	}
}

func TestAMountThatCannotBeTakenOverIsGivenUp(t *testing.T) {
	t.Parallel()
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
	await.Until(t, "the mount is reported as failed", func() bool { return k.status(bad).State == control.StateFailed })
	if st := k.status(bad); st.Error == "" || st.Session.Name != reply.Session {
		t.Errorf("status: got %+v", st)
	}
	if _, err := mountpoint.DeviceOf(bad); err == nil {
		t.Error("the failed mount is still mounted")
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
	if !strings.Contains(strings.Join(said, "\n"), "the previous mount at this directory failed") {
		t.Errorf("messages of the next mount: got %q", said)
	}
	if got := k.sh(bad, "cat mine"); got != "mine\n" {
		t.Errorf("changed file after the next mount: got %q", got)
	}
	k.unmount(bad)
	k.unmount(good)
}

func TestGivingUpLeavesNothingMounted(t *testing.T) {
	t.Parallel()
	k := newKeep(t)
	k.start()
	k.await()
	repo, dir := sample(t, k.dir("remote")), k.dir("mnt")
	k.mount(k.request(repo.Path, dir))
	k.sh(dir, "echo 1 >new")
	k.kill()
	var descriptors []keeper.Descriptor
	for name, f := range k.kept {
		descriptors = append(descriptors, keeper.Descriptor{Name: name, File: f})
	}
	if err := GiveUp(k.state, descriptors, "it died ten times", zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	clear(k.kept)
	if _, err := mountpoint.DeviceOf(dir); err == nil {
		t.Error("the failed mount is still mounted")
	}
	k.start()
	k.await()
	if st := k.status(dir); st.State != control.StateFailed || st.Error != "it died ten times" {
		t.Errorf("status: got %+v", st)
	}
	if _, err := k.client.Unmount(t.Context(), control.UnmountRequest{Dir: dir}); err != nil {
		t.Errorf("unmount of the failed mount: got %v", err)
	}
	if reply := k.mount(k.request(repo.Path, dir)); !reply.Resumed || reply.Changed != 1 {
		t.Errorf("reply of the next mount: got %+v", reply)
	}
	k.unmount(dir)
}

// TestRegisteredMountsAreRestored checks that registered mounts are mounted again in the situation after a reboot: no
// descriptor is kept, and nothing is mounted.
func TestRegisteredMountsAreRestored(t *testing.T) {
	t.Parallel()
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
	var descriptors []keeper.Descriptor
	for name, f := range k.kept {
		descriptors = append(descriptors, keeper.Descriptor{Name: name, File: f})
	}
	if err := GiveUp(k.state, descriptors, "power cut", zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	clear(k.kept)
	if err := os.RemoveAll(filepath.Join(k.state, "failed")); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(k.state, "registry", "*"))
	if len(files) != 2 {
		t.Errorf("registry files: got %v, want two", files)
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err != nil || strings.Contains(string(text), "sesame") {
			t.Errorf("registry file %s cannot be read (%v) or contains the password: %s", f, err, text)
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
	if err != nil || len(st.Mounts) != 2 || st.Mounts[0].Dir != idle || st.Mounts[0].Commit != first.Commit ||
		!st.Mounts[0].ReadOnly || st.Mounts[1].Overlay.Changed != 1 {
		t.Errorf("mounts of the next daemon: got error %v and %+v", err, st.Mounts)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if files, _ := filepath.Glob(filepath.Join(k.state, "registry", "*")); len(files) != 2 {
		t.Errorf("registry files after the daemon's orderly end: got %v", files)
	}
}

// keepNothing is a Keeper that drops all descriptors.
type keepNothing struct{}

func (keepNothing) Keep(string, *os.File) error { return nil }
func (keepNothing) Drop(string) error           { return nil }
