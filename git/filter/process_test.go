package filter

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

func TestProcessIsKept(t *testing.T) {
	tr := newTree(t, nil)
	large := strings.Repeat("abc\n", 300_000)
	for path, content := range map[string]string{"a": "one", "d/e": "two\n", "empty": "", "large": large,
		"packet": large[:pktline.MaxData], "more": large[:pktline.MaxData+1]} {
		got, err := tr.through("plain", path, content)
		if err != nil || got != strings.ToUpper(content) {
			t.Errorf("filter %s: got %d bytes, %v", path, len(got), err)
		}
	}
	f, out := file("told", "x")
	f.Ref, f.Treeish, f.BlobID = "refs/heads/main", "aa", "bb"
	if err := tr.Process(command("plain"), f); err != nil || out.String() != "X" {
		t.Errorf("filter process: got %q, %v, want \"X\"", out, err)
	}
	text, n := tr.trace()
	if n["start"] != 1 || n["smudge"] != 7 || !strings.HasPrefix(text, "start "+tr.dir+"/git\n") ||
		!strings.Contains(text, "smudge pathname=told ref=refs/heads/main treeish=aa blob=bb\n") {
		t.Errorf("trace of the filter: got %s", text)
	}
	tr.Close()
	if _, err := tr.through("plain", "a", "x"); !errors.Is(err, ErrStopped) {
		t.Errorf("filter after Close: got %v", err)
	}
}

func TestDelayedContents(t *testing.T) {
	tr := newTree(t, nil)
	// While the contents of the first file are filtered, those of the others are queued, and are then filtered
	// together.
	gate, opened := make(chan struct{}), make(chan struct{})
	tr.o.Ready = func(context.Context) error {
		close(opened)
		<-gate
		return nil
	}
	const files = 20
	var wg sync.WaitGroup
	check := func(i int) {
		content := fmt.Sprintf("content %d", i)
		path := fmt.Sprintf("f%d", i)
		if i == 7 {
			path = "f8" // the same path with other contents
		}
		got, err := tr.through("delay", path, content)
		if err != nil || got != strings.ToUpper(content) {
			t.Errorf("request %d to the delaying filter: got %q, %v", i, got, err)
		}
	}
	wg.Go(func() { check(0) })
	<-opened
	for i := 1; i < files; i++ {
		wg.Go(func() { check(i) })
	}
	pool := func() *pool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return tr.pool(command("delay"))
	}()
	await.Until(t, "all contents are queued", func() bool {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		return len(pool.queue)+len(pool.busy) == files
	})
	tr.o.Ready = nil
	close(gate)
	wg.Wait()
	text, n := tr.trace()
	if n["start"] != 1 || n["list"] < (files-2)/2 || n["list"] > files {
		t.Errorf("commands that the filter received: %v\n%s", n, text)
	}
	if strings.Count(text, "can-delay=1") < files-3 {
		t.Errorf("hardly any content was delayed: %s", text)
	}
	check(100) // the contents of a single file need not be delayed
	if after, n := tr.trace(); n["start"] != 1 ||
		strings.Count(after, "can-delay=1") != strings.Count(text, "can-delay=1") {
		t.Errorf("commands after a lone request: %v, want one start and no further delay", n)
	}
}

// round filters the contents of several paths concurrently.
func (tr *tree) round(behaviour string, paths ...string) (answers map[string]string, errs map[string]error) {
	tr.t.Helper()
	jobs := make([]*job, len(paths))
	outs := make([]*output, len(paths))
	for i, path := range paths {
		f, out := file(path, "text of "+path)
		jobs[i], outs[i] = &job{file: f, done: make(chan struct{})}, out
	}
	o := &pool{programs: tr.Programs, command: command(behaviour), wake: make(chan struct{}, 1), queue: jobs, workers: 1}
	w := worker{pool: o, ctx: tr.running.ctx}
	for len(o.queue) > 0 {
		batch := o.queue
		o.queue = nil
		for _, j := range w.round(batch) {
			j.tries++
			o.retry(j)
		}
	}
	if w.c != nil {
		w.c.end(false)
	}
	answers, errs = map[string]string{}, map[string]error{}
	for i, j := range jobs {
		<-j.done
		answers[paths[i]], errs[paths[i]] = outs[i].String(), j.err
	}
	return answers, errs
}

func TestFailingProcesses(t *testing.T) {
	for _, c := range []struct {
		behaviour string
		paths     []string
		failed    []string
		starts    int
	}{
		{"plain", []string{"a", "b"}, nil, 1},
		{"plain", []string{"a", "bad", "late", "b"}, []string{"bad", "late"}, 1},
		{"plain", []string{"a", "abort", "b"}, []string{"abort", "b"}, 1},
		{"delay", []string{"a", "bad", "b", "c", "d"}, []string{"bad"}, 1},
		{"delay-forget", []string{"a", "b"}, []string{"a", "b"}, 1},
		{"delay-lie", []string{"a", "b"}, []string{"a", "b"}, 1},
		{"delay-die", []string{"a", "b", "c", "d", "e"}, nil, 3},
		{"dies-after-0", []string{"a"}, []string{"a"}, 1},
		{"dies-after-1", []string{"a", "b", "c"}, nil, 3},
		{"cleans", []string{"a", "b"}, []string{"a", "b"}, 1},
		{"fails", []string{"a", "b", "c"}, []string{"a", "b", "c"}, 1},
		{"garbage", []string{"a"}, []string{"a"}, 1},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			tr := newTree(t, nil)
			answers, errs := tr.round(c.behaviour, c.paths...)
			for _, path := range c.paths {
				failed := false
				for _, f := range c.failed {
					failed = failed || f == path
				}
				switch {
				case failed && !errors.Is(errs[path], ErrUnfiltered):
					t.Errorf("filter %s: got error %v, want ErrUnfiltered", path, errs[path])
				case !failed && (errs[path] != nil || answers[path] != strings.ToUpper("text of "+path)):
					t.Errorf("filter %s: got %q, %v", path, answers[path], errs[path])
				}
			}
			if text, n := tr.trace(); n["start"] != c.starts {
				t.Errorf("the filter was started %d times, want %d:\n%s", n["start"], c.starts, text)
			}
		})
	}
}

func TestDeadline(t *testing.T) {
	const short = 300 * time.Millisecond
	tr := newTree(t, func(o *Options) { o.Deadline = short })
	if _, err := tr.through("hangs", "a", "x"); !errors.Is(err, ErrDeadline) {
		t.Errorf("program that hangs: got %v, want ErrDeadline", err)
	}
	// A busy machine may need longer than the deadline to start a process.
	tr.o.Deadline = time.Minute
	tr.mu.Lock()
	o := tr.pool(command("hangs"))
	tr.mu.Unlock()
	o.mu.Lock()
	o.failure = nil
	o.mu.Unlock()
	if got, err := tr.through("hangs", "good", "x"); err != nil || got != "X" {
		t.Errorf("next request after a program has hung: got %q, %v", got, err)
	}
	tr.o.Deadline = short
	f, _ := file("x", "")
	if err := tr.OneShot("sleep 100", f); !errors.Is(err, ErrDeadline) {
		t.Errorf("OneShot: got %v", err)
	}
	if _, err := newTree(t, nil).through("nonsense", "a", "x"); !errors.Is(err, ErrUnfiltered) {
		t.Errorf("program that answers nonsense: got %v, want ErrUnfiltered", err)
	}
}

// TestIdleProcessHasNoDeadline checks that the deadline of a filter process does not run while the process has no
// request, so that an idle process is not killed.
func TestIdleProcessHasNoDeadline(t *testing.T) {
	tr := newTree(t, nil)
	first, _ := file("a", "x")
	j := &job{file: first, done: make(chan struct{})}
	o := &pool{programs: tr.Programs, command: command("plain"), wake: make(chan struct{}, 1),
		queue: []*job{j}, workers: 1}
	ctx, cancel := context.WithCancel(t.Context())
	w, ended := worker{pool: o, ctx: ctx}, make(chan struct{})
	go func() { w.work(); close(ended) }()
	await.Receive(t, j.done)
	await.Until(t, "the worker waits for a request", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.idle == 1 })
	if j.err != nil || w.c.run.timer.Stop() {
		t.Errorf("after a request with the error %v the deadline of the idle process runs", j.err)
	}
	cancel()
	await.Receive(t, ended)
}

// TestSlowFileDelaysNoOthers checks that a file whose filtering takes long does not delay other files for long, because
// a second process is started.
func TestSlowFileDelaysNoOthers(t *testing.T) {
	tr := newTree(t, nil)
	hung := make(chan error, 1)
	go func() {
		_, err := tr.through("hangs", "a", "x")
		hung <- err
	}()
	await.Until(t, "the process is busy", func() bool { _, n := tr.trace(); return n["smudge"] == 1 })
	if got, err := tr.through("hangs", "good", "x"); err != nil || got != "X" {
		t.Errorf("request after one that hangs: got %q, %v", got, err)
	}
	tr.Close()
	if err := <-hung; !errors.Is(err, ErrStopped) {
		t.Errorf("request that hangs at Close: got %v, want ErrStopped", err)
	}
	if text, n := tr.trace(); n["start"] != 2 {
		t.Errorf("trace of the filter: got %s", text)
	}
}

func TestRelease(t *testing.T) {
	tr := newTree(t, nil)
	if _, err := tr.through("plain", "a", "x"); err != nil {
		t.Fatal(err)
	}
	if !tr.Release() {
		t.Error("an idle process was not ended")
	}
	if _, n := tr.trace(); n["end"] != 1 {
		t.Error("an idle process was killed instead of ended by closing its input")
	}
	if _, err := tr.through("plain", "a", "x"); err != nil {
		t.Error(err)
	}
	f, _ := file("a", "x")
	wanted := true
	f.Wanted = func() bool { return wanted }
	done := make(chan error, 1)
	go func() { done <- tr.Process(command("hangs"), f) }()
	await.Until(t, "the process is busy", func() bool { _, n := tr.trace(); return n["smudge"] == 3 })
	if tr.Release() {
		t.Error("a process whose result is awaited was ended")
	}
	wanted = false
	if !tr.Release() {
		t.Error("a process whose result is not awaited was not ended")
	}
	if err := <-done; !errors.Is(err, ErrStopped) {
		t.Error(err)
	}
	f.Wanted = func() bool { return false }
	if err := tr.Process(command("plain"), f); !errors.Is(err, ErrStopped) {
		t.Errorf("request whose result is not wanted: got %v, want ErrStopped", err)
	}
}

func TestNotReady(t *testing.T) {
	gone := errors.New("no git directory")
	tr := newTree(t, func(o *Options) { o.Ready = func(context.Context) error { return gone } })
	if _, err := tr.through("plain", "a", "x"); !errors.Is(err, gone) || errors.Is(err, ErrUnfiltered) {
		t.Error(err)
	}
	f, _ := file("a", "x")
	if err := tr.OneShot("cat", f); !errors.Is(err, gone) || errors.Is(err, ErrUnfiltered) {
		t.Error(err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrInvalid }
func (full) Reset() error              { return nil }

// TestFullOutput checks that an error of the output does not count as an error of the filter, and that the filter
// process is used again.
func TestFullOutput(t *testing.T) {
	tr := newTree(t, nil)
	f, _ := file("a", strings.Repeat("x", 3*pktline.MaxData))
	f.Out = full{}
	if err := tr.Process(command("plain"), f); !errors.Is(err, os.ErrInvalid) || errors.Is(err, ErrUnfiltered) {
		t.Error(err)
	}
	if err := tr.OneShot("cat", f); !errors.Is(err, os.ErrInvalid) || errors.Is(err, ErrUnfiltered) {
		t.Error(err)
	}
	if got, err := tr.through("plain", "a", "x"); err != nil || got != "X" {
		t.Errorf("request after an invalid one: got %q, %v", got, err)
	}
	if text, n := tr.trace(); n["start"] != 1 {
		t.Errorf("trace of the filter: got %s", text)
	}
}

// FuzzAnswers checks that arbitrary output of a filter process can be parsed without a panic.
func FuzzAnswers(f *testing.F) {
	hello := "0016git-filter-server\n000eversion=2\n0000"
	able := "0016capability=smudge\n0015capability=delay\n0000"
	for _, s := range []string{
		hello + able + "0013status=success\n0000" + "0005X" + "0000" + "0000",
		hello + able + "0013status=delayed\n0000" + "000fpathname=a\n0000" + "0013status=success\n0000" +
			"0013status=success\n00000005X00000000",
		hello + able + "0011status=error\n0000", hello + able + "0011status=abort\n0000", hello, "", "0000", "fff1", "0003",
		"zzzz", hello + "0004", hello + able + "0013status=success\n0000fff0abc",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		out := &output{}
		file := File{Path: "a", Content: strings.NewReader("text"), Size: 4, Out: out}
		c := &process{in: packetWriter{bufio.NewWriter(new(bytes.Buffer))}, out: newPacketReader(bytes.NewReader(said))}
		if err := c.handshake(); err != nil {
			return
		}
		what, err := c.filter(&file, c.delay)
		if what == delayed {
			if !c.delay || err != nil {
				t.Errorf("got a delayed answer, %v", err)
			}
			paths, listErr := c.available()
			if listErr == nil && len(paths) > 0 {
				if what, err = c.collect(&file); what == delayed {
					t.Errorf("got a delayed answer again, %v", err)
				}
			}
		}
		if what == refused && !errors.Is(err, ErrUnfiltered) || what == broken && err == nil || out.Len() > len(said) {
			t.Errorf("got %v, %v, %d bytes", what, err, out.Len())
		}
	})
}
