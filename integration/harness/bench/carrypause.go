package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// pauses runs 64 programs that write, each in a separate directory: first without checkpoints, then while checkpoints
// are made one after the other. For comparison, it does the same in a clone on the local disk while commits are made.
func (r *rig) pauses(m carriedMount) error {
	clone := r.path("paused")
	if _, err := r.sh(r.dir, "git clone -q "+r.repo+" "+clone); err != nil {
		return err
	}
	var said []float64
	checkpoints := func() error {
		var p madeCheckpoint
		_, err := r.afs(r.state, &p, "checkpoint", m.Dir)
		said = append(said, p.Paused)
		return err
	}
	commits := func() error {
		// git add -A would examine all files. If a file is written while git reads it, git add fails, and the next
		// commit contains the file.
		_, err := r.sh(clone, "if git add writers; then git commit -qm more; fi")
		return err
	}
	for _, place := range []struct {
		name, dir, saving string
		save              func() error
	}{
		{"mount", m.Dir, "checkpoints", checkpoints},
		{"local disk", clone, "commits", commits},
	} {
		for _, save := range []func() error{nil, place.save} {
			with := "nothing else"
			if save != nil {
				with = place.saving + " one after the other"
			}
			w, err := writeAll(filepath.Join(place.dir, "writers"), save)
			if err != nil {
				return err
			}
			r.row("pause", fmt.Sprintf("%d writers, %s, %s", writers, place.name, with),
				fmt.Sprintf("write %s; file made and renamed %s", waits(w.writes), waits(w.names)), "", true)
		}
	}
	slices.Sort(said)
	longest := time.Duration(said[len(said)-1] * 1e6)
	r.row("pause", fmt.Sprintf("%d checkpoints, %d writers", len(said), writers),
		fmt.Sprintf("stated: median %.1f ms, longest %s", said[len(said)/2], seconds(longest)), "20 ms",
		longest < 20*time.Millisecond)
	return nil
}

const writers = 64

// written contains the durations of the writes and of the operations on names.
type written struct{ writes, names []time.Duration }

// waits returns the median, the 99.9th percentile and the maximum of durations as text.
func waits(took []time.Duration) string {
	slices.Sort(took)
	n := len(took)
	return fmt.Sprintf("median %s, 99.9%% %s, longest of %d %s", seconds(took[n/2]), seconds(took[n*999/1000]), n,
		seconds(took[n-1]))
}

// writeAll runs the programs that write for ten seconds. Unless meanwhile is nil, it calls meanwhile repeatedly during
// this time.
func writeAll(dir string, meanwhile func() error) (all written, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return all, err
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range writers {
		wg.Go(func() {
			one, failed := writeOne(filepath.Join(dir, fmt.Sprint("dir", i)), &stop)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				err = failed
			}
			all.writes, all.names = append(all.writes, one.writes...), append(all.names, one.names...)
		})
	}
	var failed error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && failed == nil; {
		if meanwhile == nil {
			time.Sleep(100 * time.Millisecond)
		} else {
			failed = meanwhile()
		}
	}
	stop.Store(true)
	wg.Wait()
	if failed != nil {
		err = failed
	}
	return all, err
}

// writeOne writes to a file 50 times a second until stop is true. Sometimes it writes a new file and renames it, as
// editors do.
func writeOne(dir string, stop *atomic.Bool) (w written, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return w, err
	}
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		return w, err
	}
	defer f.Close()
	path, buf := filepath.Join(dir, "other"), make([]byte, 4096)
	for n := 0; !stop.Load(); n++ {
		// the contents differ for each write, so that every checkpoint stores something
		binary.LittleEndian.PutUint64(buf, uint64(n)+1)
		start := time.Now()
		if _, err := f.WriteAt(buf, int64(n%64)*4096); err != nil {
			return w, err
		}
		w.writes = append(w.writes, time.Since(start))
		if n%8 == 0 {
			start = time.Now()
			if err := os.WriteFile(path+".tmp", buf[:100], 0o644); err != nil {
				return w, err
			}
			if err := os.Rename(path+".tmp", path+".new"); err != nil {
				return w, err
			}
			w.names = append(w.names, time.Since(start))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return w, nil
}
