package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// record returns the i-th record of a test: its number, then bytes that are derived from the number.
func record(i int) []byte {
	rnd := rand.New(rand.NewPCG(uint64(i), 9))
	size := rnd.IntN(300)
	if i%97 == 96 {
		size = rnd.IntN(70_000)
	}
	b := make([]byte, 8+size)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	binary.LittleEndian.PutUint64(b, uint64(i))
	return b
}

// replayer counts records and checks that they have the right contents, in order from the first.
type replayer struct {
	t testing.TB
	n int
}

func (r *replayer) replay(b []byte, time int64) error {
	if !bytes.Equal(b, record(r.n)) || time != int64(r.n)-5 {
		r.t.Fatalf("record %d: got %d bytes with time %d", r.n, len(b), time)
	}
	r.n++
	return nil
}

func open(t testing.TB, path string, o Options) (*Log, Recovery, int) {
	t.Helper()
	r := &replayer{t: t}
	o.Replay = r.replay
	l, rec, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	if int(rec.Records) != r.n {
		t.Fatalf("replayed %d records, but the recovery reports %d", r.n, rec.Records)
	}
	return l, rec, r.n
}

func add(t testing.TB, l *Log, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := l.Append(record(i), int64(i)-5); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecordsSurviveTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	n := 0
	for run := range 5 {
		l, rec, have := open(t, path, Options{})
		if have != n || rec.Fresh != (run == 0) || rec.Cut != 0 || rec.PowerLost || rec.Clean != (run == 3) {
			t.Fatalf("run %d: got %d of %d records, recovery %+v", run, have, n, rec)
		}
		add(t, l, n, n+3000) // some MiB
		n += 3000
		if run == 2 {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		l.Abandon()
	}
}

func TestLargeRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, _, _ := open(t, path, Options{})
	large := bytes.Repeat([]byte("large"), 1<<20)
	for _, b := range [][]byte{large, {1}, large[:chunkSize], large[1:]} {
		if err := l.Append(b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Append(nil, 0); err == nil {
		t.Error("an empty record was appended")
	}
	if err := l.Append(make([]byte, maxRecord+1), 0); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("append a record that is too large: got %v", err)
	}
	l.Abandon()
	var sizes []int
	if _, _, err := Open(path, Options{Salvage: true, Replay: func(b []byte, _ int64) error {
		sizes = append(sizes, len(b))
		return nil
	}}); err != nil || fmt.Sprint(sizes) != fmt.Sprint([]int{len(large), 1, chunkSize, len(large) - 1}) {
		t.Errorf("replay the log: got record sizes %v, %v", sizes, err)
	}
}

func TestFullDiskIsAnErrorOfAppend(t *testing.T) {
	var full atomic.Bool
	fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if full.Load() && op.Name == "Allocate" {
			return syscall.ENOSPC
		}
		return nil
	})
	path := filepath.Join(t.TempDir(), "log")
	l, _, _ := open(t, path, Options{FS: fs})
	full.Store(true)
	n := 0
	for ; n < 100_000; n++ {
		if err := l.Append(record(n), int64(n)-5); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			break
		}
	}
	if size := l.Size(); l.Append(record(n), int64(n)-5) == nil || l.Size() != size {
		t.Fatal("the log grew on a full disk")
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	full.Store(false)
	add(t, l, n, n+2000)
	l.Abandon()
	if _, _, have := open(t, path, Options{}); have != n+2000 {
		t.Errorf("records: got %d, want %d", have, n+2000)
	}
}

// If the file system cannot provide an allocated page, the append fails, and the process does not die of SIGBUS.
func TestPageFaultIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, _, _ := open(t, path, Options{})
	add(t, l, 0, 10)
	if err := os.Truncate(path, pageSize*2); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(make([]byte, 3*pageSize), 0); !errors.Is(err, syscall.EIO) {
		t.Fatalf("append behind the end of the file: got %v", err)
	}
	if err := os.Truncate(path, chunkSize); err != nil {
		t.Fatal(err)
	}
	add(t, l, 10, 20)
	l.Abandon()
	if _, _, have := open(t, path, Options{}); have != 20 {
		t.Errorf("records: got %d", have)
	}
}

func TestSyncsAreShared(t *testing.T) {
	var syncs atomic.Int64
	gate := make(chan struct{})
	fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if op.Name == "DataSync" && syncs.Add(1) == 2 {
			<-gate
		}
		return nil
	})
	l, _, _ := open(t, filepath.Join(t.TempDir(), "log"), Options{FS: fs})
	const callers = 50
	var ready, done sync.WaitGroup
	for i := range callers {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			err := l.Append(record(i), 0)
			ready.Done()
			if err := errors.Join(err, l.Sync()); err != nil {
				t.Error(err)
			}
		}()
	}
	ready.Wait() // the first Sync waits; all records are appended
	close(gate)
	done.Wait()
	if n := syncs.Load() - 1; n > 3 {
		t.Errorf("got %d syncs for %d callers", n, callers)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFailedSyncIsNotForgotten(t *testing.T) {
	var bad atomic.Bool
	fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
		if bad.Load() && op.Name == "DataSync" {
			return syscall.EIO
		}
		return nil
	})
	path := filepath.Join(t.TempDir(), "log")
	l, _, _ := open(t, path, Options{FS: fs})
	add(t, l, 0, 10)
	bad.Store(true)
	if err := l.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	bad.Store(false)
	if err := l.Sync(); !errors.Is(err, ErrUnsynced) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("the Sync after a failed one: got %v", err)
	}
	r, err := l.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := r.Append(record(i), int64(i)-5); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(r.Commit(), l.Sync(), l.Close()); err != nil {
		t.Fatalf("Sync after a rotation: %v", err)
	}
	if _, rec, have := open(t, path, Options{}); have != 10 || !rec.Clean {
		t.Errorf("records: got %d, recovery %+v", have, rec)
	}
}
