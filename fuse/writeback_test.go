package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// frozen makes the kernel write back all data, and returns the contents of the files that differ from the base tree, by
// path.
func (m *mounted) frozen() map[string]string {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), await.Patience)
	defer cancel()
	if err := m.WriteBack(ctx); err != nil {
		m.Fatal(err)
	}
	f, err := m.tree.Freeze(ctx, "", worktree.FreezeOptions{})
	if err != nil {
		m.Fatal(err)
	}
	defer f.Release()
	contents := map[string]string{}
	for _, e := range f.Entries {
		if e.Kind != worktree.FrozenContent {
			continue
		}
		data := make([]byte, e.Size)
		if n, err := e.Content.ReadAt(data, 0); int64(n) < e.Size {
			m.Errorf("%s: read %d of %d bytes: %v", e.Path, n, e.Size, err)
		}
		contents[e.Path] = string(data)
	}
	return contents
}

// A frozen tree contains data of files that are still open: of a new file, of a base file, and of a mapping, whose
// writes cause no request.
func TestWriteBack(t *testing.T) {
	base := pattern(3*pageSize + 100)
	m := tracked(t, map[string]worktreetest.File{"dir/known": {Data: base}, "mapped": {Data: base},
		"other": {Data: "other"}}, Options{})
	m.src.KnowsSizes.Store(true)
	open := func(name string) *os.File {
		f, err := os.OpenFile(m.path(name), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	write := func(f *os.File, text string, off int64) {
		if _, err := f.WriteAt([]byte(text), off); err != nil {
			t.Fatal(err)
		}
	}
	known, fresh, writeMapped := open("dir/known"), open("new"), m.mapped("mapped")
	want := map[string][]byte{"dir/known": []byte(base), "mapped": []byte(base), "new": nil}
	for round := range 30 {
		text := fmt.Sprintf("round %02d", round)
		write(known, text, int64(round)*10)
		copy(want["dir/known"][round*10:], text)
		write(fresh, text, int64(len(want["new"])))
		want["new"] = append(want["new"], text...)
		at := (round * 1000) % (len(base) - 10)
		writeMapped(at, text)
		copy(want["mapped"][at:], text)
		got := m.frozen()
		for name, data := range want {
			if got[name] != string(data) {
				t.Errorf("round %d: contents of %s differ: got %d bytes, want %d", round, name, len(got[name]), len(data))
			}
		}
		if _, ok := got["other"]; ok {
			t.Error("the frozen tree contains a file that was not changed")
		}
	}
}

// mapped maps a file in another process. A thread of this process that waited in a page fault for its own mount would
// block Go's scheduler.
func (m *mounted) mapped(name string) (write func(at int, text string)) {
	m.Helper()
	self, err := os.Executable()
	if err != nil {
		m.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"=map", mountEnv+"="+m.path(name))
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			m.Error(err)
		}
	})
	return func(at int, text string) {
		m.Helper()
		if _, err := fmt.Fprintf(in, "%d %q\n", at, text); err != nil {
			m.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			m.Fatal(err)
		}
	}
}

// writeMapped runs in the process that mapped starts.
func writeMapped(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	mapping, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for {
		var at int
		var text string
		if _, err := fmt.Scanf("%d %q\n", &at, &text); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		copy(mapping[at:], text)
		if _, err := os.Stdout.WriteString("."); err != nil {
			return err
		}
	}
}

// Without writes, WriteBack causes no requests.
func TestWriteBackOfNothing(t *testing.T) {
	m := tracked(t, manyFiles(1000), Options{})
	m.run("find", ".", "-size", "+100k")
	m.frozen()
	undisturbed(t, func() (errs []error) {
		requests := m.requests(func() { m.frozen() })
		delete(requests, "STATFS")
		if total(requests) > 1 { // the attributes of the root, if the kernel has not cached them
			errs = append(errs, fmt.Errorf("WriteBack without writes caused the requests %v", requests))
		}
		return errs
	})
}

// A WriteBack that begins while the kernel unmounts the mount succeeds, because the kernel has sent everything.
func TestWriteBackAfterUnmount(t *testing.T) {
	m := tracked(t, manyFiles(1), Options{})
	if err := m.Unmount(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.WriteBack(t.Context()); err != nil {
		t.Errorf("WriteBack after the unmount: got %v", err)
	}
}

// Readers that wait for an unreachable remote do not block a freeze. A write that waits for missing contents makes
// WriteBack return at its deadline.
func TestWriteBackBesideTheBlocked(t *testing.T) {
	files := map[string]worktreetest.File{"file": {Data: "data"}, "slow": {Data: pattern(3 * pageSize)}}
	for i := range 40 {
		files[fmt.Sprint("blocked", i)] = worktreetest.File{Data: fmt.Sprint("blocked ", i)}
	}
	m := tracked(t, files, Options{})
	m.src.KnowsSizes.Store(true)
	release := make(chan struct{})
	var readers sync.WaitGroup
	for name := range files {
		if name == "file" {
			continue
		}
		m.src.Rule(name, worktreetest.Rule{Block: release})
		if name != "slow" {
			readers.Go(func() { os.ReadFile(m.path(name)) })
		}
	}
	defer readers.Wait()
	for name := range files {
		if strings.HasPrefix(name, "blocked") {
			for m.src.Waiting(name) == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}
	if err := os.WriteFile(m.path("file"), []byte("new"), 0o644); err != nil {
		t.Error(err)
	}
	if got := m.frozen(); got["file"] != "new" {
		t.Errorf("frozen tree after the write: got %q", got)
	}
	f, err := os.OpenFile(m.path("slow"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Repeat("x", pageSize)
	written := make(chan error, 1)
	go func() {
		_, err := f.WriteAt([]byte(page), 0)
		written <- err
	}()
	m.until("the write waits", func() bool { return m.src.Waiting("slow") == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	if err := m.WriteBack(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WriteBack with a write that waits: got %v, want a time-out", err)
	}
	cancel()
	close(release)
	if err := errors.Join(<-written, f.Close()); err != nil {
		t.Error(err)
	}
	if got := m.frozen(); !strings.HasPrefix(got["slow"], page) {
		t.Errorf("contents of slow in the frozen tree: got %.20q", got["slow"])
	}
}

// A frozen tree is the state of one moment: if a program appends synchronously to one file and then to another, the
// second file never has more lines than the first, and at most one less. Other programs write at the same time.
func TestFreezeBetweenWrites(t *testing.T) {
	m := tracked(t, nil, Options{})
	var stop atomic.Bool
	var all sync.WaitGroup
	const pairs, writers = 3, 8
	for i := range pairs {
		var files [2]*os.File
		for k := range files {
			var err error
			if files[k], err = os.OpenFile(m.path(fmt.Sprintf("pair%d-%d", i, k)), os.O_WRONLY|os.O_CREATE|os.O_APPEND|os.O_SYNC,
				0o644); err != nil {
				t.Fatal(err)
			}
			defer files[k].Close()
		}
		all.Go(func() {
			for n := 0; !stop.Load(); n++ {
				for _, f := range files {
					if _, err := fmt.Fprintf(f, "%09d\n", n); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for i := range writers {
		all.Go(func() {
			data := bytes.Repeat([]byte("w"), 10_000)
			for n := 0; !stop.Load(); n++ {
				if err := os.WriteFile(m.path(filepath.Join(fmt.Sprintf("noise%d-%d", i, n%20))), data, 0o644); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	seen := 0
	for begin := time.Now(); !t.Failed(); {
		if took := time.Since(begin); took > await.Patience || took > 2*time.Second && seen > 0 {
			break
		}
		got := m.frozen()
		for i := range pairs {
			a, b := got[fmt.Sprintf("pair%d-0", i)], got[fmt.Sprintf("pair%d-1", i)]
			if len(a)%10 != 0 || len(b)%10 != 0 || len(a)-len(b) != 0 && len(a)-len(b) != 10 || !strings.HasPrefix(a, b) {
				t.Errorf("pair %d is not of one moment: got %d and %d bytes", i, len(a), len(b))
			}
			seen = max(seen, len(b)/10)
		}
	}
	stop.Store(true)
	all.Wait()
	t.Logf("%d numbers", seen)
	if seen == 0 {
		t.Error("the writers wrote nothing")
	}
}

// BenchmarkWriteBackAndFreeze measures WriteBack and Freeze, and their effect on programs that write at the same time:
// the longest write(2) with them, and in the same time without them.
func BenchmarkWriteBackAndFreeze(b *testing.B) {
	for _, c := range []struct{ files, writers int }{{0, 0}, {10, 0}, {10, 64}, {10_000, 0}, {10_000, 64}} {
		b.Run(fmt.Sprintf("files=%d/writers=%d", c.files, c.writers), func(b *testing.B) {
			m := tracked(b, manyFiles(1000), Options{})
			var stop atomic.Bool
			var longest atomic.Int64
			var all sync.WaitGroup
			for i := range c.writers {
				f, err := os.Create(m.path(fmt.Sprint("writer", i)))
				if err != nil {
					b.Fatal(err)
				}
				all.Go(func() {
					defer f.Close()
					for n := int64(0); !stop.Load(); n++ {
						begin := time.Now()
						if _, err := f.WriteAt([]byte("some text\n"), n%10_000*10); err != nil {
							b.Error(err)
							return
						}
						for took := int64(time.Since(begin)); ; {
							if was := longest.Load(); took <= was || longest.CompareAndSwap(was, took) {
								break
							}
						}
						time.Sleep(2 * time.Millisecond)
					}
				})
			}
			token := m.tree.Monitor().StartToken()
			var paused, back, with, without time.Duration
			var spent []time.Duration
			for round := 0; b.Loop(); round++ {
				b.StopTimer()
				dir := m.path(fmt.Sprint("made", round))
				if err := os.Mkdir(dir, 0o755); err != nil {
					b.Fatal(err)
				}
				for i := range c.files {
					if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte("contents"), 0o644); err != nil {
						b.Fatal(err)
					}
				}
				longest.Store(0)
				b.StartTimer()
				begin := time.Now()
				if err := m.WriteBack(b.Context()); err != nil {
					b.Fatal(err)
				}
				written := time.Now()
				f, err := m.tree.Freeze(b.Context(), token, worktree.FreezeOptions{})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				took := time.Since(begin)
				back, spent = back+written.Sub(begin), append(spent, took)
				token, paused = f.Token, max(paused, f.Paused)
				f.Release()
				with = max(with, time.Duration(longest.Swap(0)))
				time.Sleep(took)
				without = max(without, time.Duration(longest.Load()))
				b.StartTimer()
			}
			stop.Store(true)
			all.Wait()
			ms := func(d time.Duration, name string) { b.ReportMetric(float64(d.Microseconds())/1000, name) }
			ms(paused, "ms-paused")
			ms(back/time.Duration(len(spent)), "ms-writeback")
			if c.writers > 0 {
				ms(with, "ms-longest-write")
				ms(without, "ms-longest-write-without")
			}
		})
	}
}
