package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// The environment sets the number of steps and the seed. A failure prints the seed.
var (
	modelSteps = envInt("AFS_MODEL_STEPS", 3000)
	modelSeed  = envInt("AFS_MODEL_SEED", int(time.Now().UnixNano()&0xffffff))
	traceModel = os.Getenv("AFS_MODEL_TRACE") != ""
)

func envInt(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// modelBase is the tree that both sides start from.
func modelBase(r *rand.Rand) map[string]gittest.File {
	files := map[string]gittest.File{}
	for _, dir := range []string{"", "a", "b", "a/c", "a/c/d", "e/f/g"} {
		for i := range 6 {
			data := make([]byte, []int{0, 1, 100, 4096, 4097, 70_000}[i])
			for j := range data {
				data[j] = byte(r.Uint32())
			}
			files[filepath.Join(dir, string("abcdefgh"[i])+"0")] = gittest.File{Data: data}
		}
		files[filepath.Join(dir, "run")] = gittest.File{Data: []byte("#!/bin/sh\n"), Mode: "100755"}
		files[filepath.Join(dir, "link")] = gittest.File{Data: []byte("a0"), Mode: "120000"}
	}
	return files
}

// plainTree writes a base tree to a plain directory as git would check it out.
func plainTree(t testing.TB, dir string, files map[string]gittest.File) {
	t.Helper()
	for name, f := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch f.Mode {
		case "120000":
			err = errors.Join(err, os.Symlink(string(f.Data), path))
		case "100755":
			err = errors.Join(err, os.WriteFile(path, f.Data, 0o755))
		default:
			err = errors.Join(err, os.WriteFile(path, f.Data, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The comparison finds no difference between two plain directories, and detects a side that now and then skips a kind
// of op.
func TestModelItself(t *testing.T) {
	every := func(n int, kinds ...string) func(*op) bool {
		seen := 0
		return func(o *op) bool {
			if slices.Contains(kinds, o.kind) {
				seen++
			}
			return slices.Contains(kinds, o.kind) && seen%n == 0
		}
	}
	for name, wrong := range map[string]func(*op) bool{
		"right":            nil,
		"lost write":       every(20, "write", "append", "write open"),
		"lost mapping":     every(10, "write mapped"),
		"lost rename":      every(20, "rename"),
		"lost chmod":       every(9, "chmod"),
		"lost xattr":       every(9, "set xattr"),
		"lost link":        every(9, "link"),
		"lost utimes":      every(9, "utimes"),
		"lost truncation":  every(9, "truncate"),
		"lost exchange":    every(9, "exchange"),
		"lost unlink":      every(9, "unlink"),
		"lost preparation": every(4, "fallocate"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps := modelSteps
			if wrong != nil {
				// Most faults are detected within a few hundred steps. A rare one may need several thousand: a file's length that
				// was not prepared is soon hidden by a write.
				steps = 50_000
			}
			files := modelBase(rand.New(rand.NewPCG(1, 2)))
			a, b := newSide("the plain tree", t.TempDir()), newSide("the other plain tree", t.TempDir())
			plainTree(t, a.root, files)
			plainTree(t, b.root, files)
			defer a.closeAll()
			defer b.closeAll()
			b.wrong = wrong
			m, err := newModel(a, b, uint64(modelSeed))
			if err == nil {
				err = m.run(steps, 200)
			}
			if wrong == nil && err != nil {
				t.Errorf("seed %d: %v", modelSeed, err)
			}
			if wrong == nil {
				t.Logf("%d steps, %v", m.step, m.kinds)
			}
			if wrong != nil && err == nil {
				t.Errorf("seed %d: the fault was not detected in %d steps", modelSeed, m.step)
			}
		})
	}
}

// modelMount is a side in a mount, which is unmounted or killed in several ways and mounted again.
type modelMount struct {
	*model
	w     *world
	m     mounted
	url   string
	flags []string
}

// newModelMount serves a base tree and mounts it beside a clone of it. Git writes the clone, which is the tree that the
// mount must show.
func newModelMount(w *world, seed int, flags ...string) *modelMount {
	w.Helper()
	r := w.repo("model.git", object.SHA1)
	w.commit(r, modelBase(rand.New(rand.NewPCG(1, 2))))
	s := w.serve(gittest.ServerOptions{})
	s.Inject(gittest.Fault{Kind: gittest.NoObjectInfo, On: gittest.Capabilities})
	mm := &modelMount{w: w, url: s.URL("model.git"),
		flags: append([]string{"--history", "none", "--prefetch", "none"}, flags...)}
	mm.m = w.mount(mm.url, mm.flags...)
	m, err := newModel(newSide("the plain tree", w.clone("file://"+r.Path)), newSide("the mount", mm.m.Dir), uint64(seed))
	if err != nil {
		w.Fatalf("compare before the first op: %v", err)
	}
	mm.model = m
	w.Cleanup(m.closeHandles)
	return mm
}

// again mounts the session that has just been unmounted or killed.
func (mm *modelMount) again() error {
	mm.w.ok(append([]string{"mount", mm.url, mm.m.Dir}, mm.flags...)...)
	if err := mm.compareAll(); err != nil {
		return mm.failed("after mounting again", err)
	}
	mm.unsynced = map[identity]bool{}
	return nil
}

// flush makes the kernel write back dirty pages and times. It is not an fsync: the daemon receives writes and times,
// and is not asked to make them durable. Pages of closed files have been written back by close; syncfs writes back
// those of open ones too, but does not wait for FUSE (mm: AS_NO_DATA_INTEGRITY), sync_file_range does.
func (mm *modelMount) flush() error {
	for _, fd := range mm.other.open {
		err := unix.SyncFileRange(fd, 0, 0,
			unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
		if err != nil {
			return mm.failed("flush", err)
		}
	}
	fd, err := open(mm.m.Dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return mm.failed("flush", err)
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return mm.failed("flush", err)
	}
	mm.unsynced = map[identity]bool{}
	return nil
}

func (mm *modelMount) unmount() error {
	mm.begin(&op{text: "unmount and mount"})
	mm.closeHandles()
	mm.w.ok("unmount", mm.m.Dir)
	return mm.again()
}

// killed waits for the daemon's end after a SIGKILL.
func (mm *modelMount) killed(pid int) {
	syscall.Kill(-pid, syscall.SIGKILL)
	mm.w.dead()
}

// kill kills the daemon. Dirty pages of the kernel are lost with the mount, unless they are flushed before.
func (mm *modelMount) kill(flush bool) error {
	mm.begin(&op{text: fmt.Sprintf("kill, flushed %v", flush)})
	if flush {
		if err := mm.flush(); err != nil {
			return err
		}
	}
	mm.killed(mm.w.daemon())
	mm.closeHandles()
	mm.w.ok(append([]string{"mount", mm.url, mm.m.Dir}, mm.flags...)...)
	if err := mm.adopt(); err != nil {
		return mm.failed("after the kill", err)
	}
	if err := mm.compareAll(); err != nil {
		return mm.failed("after the kill", err)
	}
	mm.unsynced = map[identity]bool{}
	return nil
}

// killDuring kills the daemon while it makes a change. The change must be complete or absent afterwards, and complete
// if the daemon had acknowledged it.
func (mm *modelMount) killDuring() error {
	var o *op
	for o == nil || !o.atomic {
		o = mm.next()
	}
	mm.begin(&op{text: "kill during: " + o.text})
	if err := mm.flush(); err != nil {
		return err
	}
	pid, delay := mm.w.daemon(), time.Duration(mm.rnd.IntN(400))*time.Microsecond
	done := make(chan string)
	go func() { done <- mm.other.do(o) }()
	for start := time.Now(); time.Since(start) < delay; { // a timer is too coarse
	}
	syscall.Kill(-pid, syscall.SIGKILL)
	got := <-done
	mm.killed(pid)
	mm.closeHandles()
	mm.w.ok(append([]string{"mount", mm.url, mm.m.Dir}, mm.flags...)...)
	if strings.Contains(got, "ENOTCONN") || strings.Contains(got, "ECONNABORTED") {
		mm.kinds["killed before the answer"]++
		undone := mm.compareAll()
		if undone == nil {
			return nil // the op was not done, or had no effect
		}
		mm.kinds["done before the answer"]++
		mm.plain.do(o)
		if err := mm.compareAll(); err != nil {
			return mm.failed("daemon killed before the reply: the op is neither undone: "+undone.Error()+", nor done", err)
		}
		return nil
	}
	// opUtimes also reads the times, which may fail with ENOTCONN
	if want := mm.plain.do(o); want != got && o.kind != "utimes" {
		return mm.failed(fmt.Sprintf("the mount answered %s, want %s", short(got), short(want)), nil)
	}
	if err := mm.compareAll(); err != nil {
		return mm.failed("killed during an operation that answered "+short(got), err)
	}
	return nil
}

// A writable mount behaves like a plain directory under random operations, also after unmounts and crashes.
func TestModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mm := newModelMount(w, modelSeed)
	chunk := min(max(modelSteps/28, 1), 600) // steps between two unmounts or kills, of which there are 7 kinds
	every := max(chunk/2, min(500, chunk))
	start := time.Now()
	for i := 0; mm.step < modelSteps; i++ {
		err := mm.run(chunk, every)
		if err == nil {
			switch i % 7 {
			case 0, 5:
				err = mm.unmount()
			case 1:
				err = mm.kill(true)
			case 3:
				err = mm.kill(false)
			case 2, 4:
				err = mm.killDuring()
			case 6:
				w.dropCaches()
				err = mm.compareAll()
			}
		}
		if err != nil {
			t.Fatalf("AFS_MODEL_SEED=%d AFS_MODEL_STEPS=%d: %v", modelSeed, modelSteps, err)
		}
	}
	t.Logf("seed %d: %d steps in %v, %v", modelSeed, mm.step, time.Since(start).Round(time.Millisecond), mm.kinds)
}

// Several models run at once in one mount, each in its own directory.
func TestModelsAtOnce(t *testing.T) {
	w := newWorld(t)
	const n = 4
	r := w.repo("model.git", object.SHA1)
	files := map[string]gittest.File{}
	for i := range n {
		for name, f := range modelBase(rand.New(rand.NewPCG(1, 2))) {
			files[fmt.Sprintf("part%d/%s", i, name)] = f
		}
	}
	w.commit(r, files)
	s := w.serve(gittest.ServerOptions{})
	flags := []string{"--history", "none", "--prefetch", "none"}
	mount, clone := w.mount(s.URL("model.git"), flags...), w.clone("file://"+r.Path)
	var models []*model
	for i := range n {
		part := fmt.Sprintf("part%d", i)
		m, err := newModel(newSide("the plain tree", filepath.Join(clone, part)), newSide("the mount", mount.path(part)),
			uint64(modelSeed+i))
		if err != nil {
			t.Fatal(err)
		}
		w.Cleanup(m.closeHandles)
		models = append(models, m)
	}
	for range 3 {
		errs := make(chan error)
		for _, m := range models {
			go func() { errs <- m.run(modelSteps/24, 100) }()
		}
		for range n {
			if err := <-errs; err != nil {
				t.Errorf("AFS_MODEL_SEED=%d AFS_MODEL_STEPS=%d: %v", modelSeed, modelSteps, err)
			}
		}
		if t.Failed() {
			return
		}
		for _, m := range models {
			m.closeHandles()
		}
		w.unmount(mount)
		w.ok(append([]string{"mount", s.URL("model.git"), mount.Dir}, flags...)...)
		for _, m := range models {
			if err := m.compareAll(); err != nil {
				t.Fatalf("AFS_MODEL_SEED=%d: after mounting again: %v", modelSeed, err)
			}
		}
	}
}
