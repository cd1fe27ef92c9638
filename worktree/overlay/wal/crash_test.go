package wal

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/disktest"
)

// work appends, syncs and rotates at random until an operation fails or the log has n records. It stores in *synced the
// number of records that a Sync has acknowledged, and returns the number of appended records.
func work(rnd *rand.Rand, l *Log, have, n int, synced *atomic.Int64) (int, error) {
	for have < n {
		if err := l.Append(record(have), int64(have)-5); err != nil {
			return have, err
		}
		have++
		switch rnd.IntN(12) {
		case 0, 1:
			if err := l.Sync(); err != nil {
				return have, err
			}
			synced.Store(int64(have))
		case 2:
			if err := rotate(l, have); err != nil {
				return have, err
			}
		}
	}
	return have, nil
}

// rotate replaces a log by a new one with the same records.
func rotate(l *Log, have int) error {
	r, err := l.Begin()
	if err != nil {
		return err
	}
	for i := range have {
		if err := r.Append(record(i), int64(i)-5); err != nil {
			return errors.Join(err, r.Abort())
		}
	}
	return r.Commit()
}

// After a power cut at any operation, the log has all records whose Sync returned, and a prefix of the others.
func TestPowerCuts(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		dir := filepath.Join(t.TempDir(), "0")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		var synced atomic.Int64
		for cut := range 4 { // each run continues with the files of the previous one
			crash, err := disktest.NewCrashFS(dir)
			if err != nil {
				t.Fatal(err)
			}
			next, at := fmt.Sprint(dir, cut), 1+rnd.IntN(60)
			var acknowledged int64
			var once sync.Once
			power := func() {
				once.Do(func() {
					acknowledged = synced.Load()
					if err := crash.Crash(next, seed<<8|uint64(cut)); err != nil {
						t.Error(err)
					}
				})
			}
			fs := disktest.Faulty(crash, func(op disktest.Op) error {
				if op.N >= at {
					power()
					return syscall.EIO
				}
				return nil
			})
			o := Options{FS: fs, BootID: fmt.Sprint("boot", cut), LostFound: filepath.Join(dir, "lost+found")}
			r := &replayer{t: t}
			o.Replay = r.replay
			l, rec, err := Open(filepath.Join(dir, "log"), o)
			if err == nil {
				if r.n < int(synced.Load()) {
					t.Fatalf("seed %d, cut %d: got %d records, but %d had been synced, recovery %+v", seed, cut, r.n,
						synced.Load(), rec)
				}
				synced.Store(int64(r.n)) // Open syncs the records that it has read
				_, err = work(rnd, l, r.n, r.n+60, &synced)
				if err == nil {
					power()
				}
				l.Abandon()
			} else if !errors.Is(err, syscall.EIO) {
				t.Fatalf("seed %d, cut %d: %v", seed, cut, err)
			}
			power()
			synced.Store(acknowledged)
			if err := crash.Close(); err != nil {
				t.Fatal(err)
			}
			dir = next
		}
	}
}

// The n-th disk operation fails, for each n until a run has no fault: no appended record is lost, and none exists
// twice.
func TestEveryOperationMayFail(t *testing.T) {
	for n, failed := 1, true; failed; n++ {
		failed = false
		fs := disktest.Faulty(disk.OS, func(op disktest.Op) error {
			if op.N == n {
				failed = true
				return syscall.ENOSPC
			}
			return nil
		})
		path := filepath.Join(t.TempDir(), "log")
		have, synced := 0, atomic.Int64{}
		for run := range 3 {
			r := &replayer{t: t}
			l, _, err := Open(path, Options{FS: fs, Replay: r.replay})
			if err != nil {
				if !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("operation %d: %v", n, err)
				}
				continue
			}
			if r.n != have {
				t.Fatalf("operation %d, run %d: got %d records, want %d", n, run, r.n, have)
			}
			rnd := rand.New(rand.NewPCG(uint64(run), 5))
			for to := have + 25; have < to; {
				if have, err = work(rnd, l, have, to, &synced); err != nil && !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("operation %d: %v", n, err)
				}
			}
			if run == 1 {
				if err := l.Close(); err != nil && !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(err)
				}
				continue
			}
			l.Abandon()
		}
	}
}

const childPath = "WAL_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		child(path)
	}
	os.Exit(m.Run())
}

// child appends records until it is killed, and prints the number of each after its append.
func child(path string) {
	l, rec, err := Open(path, Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for i := int(rec.Records); ; i++ {
		if err := l.Append(record(i), int64(i)-5); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(i)
		if i%500 == 499 {
			if err := rotate(l, i+1); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
	}
}

func TestKilledProcessLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childPath+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last, lines := -1, 0
		for s := bufio.NewScanner(out); s.Scan(); {
			if last, err = strconv.Atoi(strings.TrimSpace(s.Text())); err != nil {
				t.Fatal(s.Text())
			}
			if lines++; lines == 2000 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		l, rec, have := open(t, path, Options{})
		if have <= last || rec.PowerLost {
			t.Fatalf("got %d records, but record %d was printed; recovery %+v", have, last, rec)
		}
		l.Abandon()
	}
}
