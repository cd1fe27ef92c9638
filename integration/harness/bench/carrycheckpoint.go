package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// checkpoints measures how long a checkpoint of a large repository takes, and how long a checkpoint blocks programs
// that write.
func (r *rig) checkpoints(o carryOptions) error {
	m, _, err := r.mount(r.state, "--session", "work", "--checkpoint", "off", "--wait", "git", "--prefetch", "none",
		"--history", "none")
	if err != nil {
		return err
	}
	if _, err := r.sh(m.Dir, "echo first >first"); err != nil {
		return err
	}
	var first madeCheckpoint
	if _, err := r.afs(r.state, &first, "checkpoint", m.Dir); err != nil {
		return err
	}
	r.row("checkpoint", "the first one", fmt.Sprintf("%.1f ms", first.Took), "", true)
	if err := r.fewFiles(m, o.files); err != nil {
		return err
	}
	if err := r.manyFiles(m); err != nil {
		return err
	}
	return r.pauses(m)
}

// fewFiles measures how long a checkpoint takes after a change of ten files.
func (r *rig) fewFiles(m carriedMount, files int) error {
	const rounds = 15
	var inside, wall []time.Duration
	var fetched int64
	looks := map[string]int{}
	for i := range rounds {
		var script strings.Builder
		for j := range 10 {
			fmt.Fprintf(&script, "echo %d >>%s\n", i, filePath((i*10+j)*files/(rounds*10)))
		}
		if _, err := r.sh(m.Dir, script.String()); err != nil {
			return err
		}
		before, err := r.status(r.state, m.Dir)
		if err != nil {
			return err
		}
		seen, end, err := r.follow(m.Dir)
		if err != nil {
			return err
		}
		var p madeCheckpoint
		took, err := r.afs(r.state, &p, "checkpoint", m.Dir)
		end()
		if err != nil {
			return err
		}
		for op, n := range seen {
			looks[op] += n
		}
		after, err := r.status(r.state, m.Dir)
		if err != nil {
			return err
		}
		if p.Changed != 10 || !p.Made {
			r.wrong("checkpoint %d: %+v", i, p)
		}
		fetched += after.Network.Blobs - before.Network.Blobs
		inside, wall = append(inside, time.Duration(p.Took*1e6)), append(wall, took)
	}
	slices.Sort(inside)
	slices.Sort(wall)
	r.row("checkpoint", fmt.Sprintf("10 changed files of %d", files),
		fmt.Sprintf("median %s, longest of %d %s", seconds(percentile(inside, 50)), rounds, seconds(inside[rounds-1])),
		"50 ms", percentile(inside, 50) < 50*time.Millisecond)
	r.row("checkpoint", "with the command's start and end", fmt.Sprintf("median %s", seconds(percentile(wall, 50))), "",
		true)
	lstat := looks["getattr"] + looks["lookup"] + looks["readdir"] + looks["readdirplus"]
	r.row("checkpoint", "blobs fetched, lstat of the mount",
		fmt.Sprintf("%d, %d (all requests of the kernel: %v)", fetched, lstat, looks), "0, 0", fetched == 0 && lstat == 0)

	st, err := r.look(m.Dir)
	if err != nil {
		return err
	}
	var last madeCheckpoint
	if _, err := r.afs(r.state, &last, "checkpoint", m.Dir); err != nil {
		return err
	}
	if last.Tree != st.Tree || last.Made {
		r.wrong("the last checkpoint has tree %s (new: %v), stock git makes %s", last.Tree, last.Made, st.Tree)
	}
	return nil
}

const traceMark = "no-such-name"

// follow counts the requests of the kernel to the mount at dir in the map seen, by kind, until end is called.
func (r *rig) follow(dir string) (seen map[string]int, end func(), err error) {
	cmd := r.command(r.state, "trace", dir, "--all", "--json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	seen = map[string]int{}
	var reading sync.WaitGroup
	began := make(chan struct{})
	reading.Go(func() {
		open := sync.OnceFunc(func() { close(began) })
		defer open()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e struct {
				Op   string `json:"op"`
				Path string `json:"path"`
			}
			if json.Unmarshal(lines.Bytes(), &e) != nil || e.Op == "" {
				continue
			}
			if strings.Contains(e.Path, traceMark) {
				open()
				continue
			}
			seen[e.Op]++
		}
	})
	// The loop ends when a look-up of a missing name was counted, because counting then works. Each name is used only
	// once, because the kernel caches the result.
	for begun := false; !begun; {
		r.places++
		os.Lstat(filepath.Join(dir, fmt.Sprint(traceMark, r.places)))
		select {
		case <-began:
			begun = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	return seen, func() {
		time.Sleep(20 * time.Millisecond) // a request appears in the trace some time after it was made
		cmd.Process.Signal(os.Interrupt)
		reading.Wait()
		cmd.Wait()
	}, nil
}

// manyFiles measures how long a checkpoint of 10,000 new files takes, and how long a commit of the same files takes in
// a clone on the local disk.
func (r *rig) manyFiles(m carriedMount) error {
	const rounds = 3
	clone := r.path("clone")
	if _, err := r.sh(r.dir, "git clone -q "+r.repo+" "+clone); err != nil {
		return err
	}
	var ours, theirs, pauses []time.Duration
	for i := range rounds {
		for _, dir := range []string{m.Dir, clone} {
			for j := range 10_000 {
				path := filepath.Join(dir, fmt.Sprintf("new%d/dir%02d/file%04d", i, j/100, j))
				if j%100 == 0 {
					if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
						return err
					}
				}
				if err := os.WriteFile(path, fmt.Appendf(nil, "new %d %d\n%s", i, j, strings.Repeat("what is new in it\n", j%40)),
					0o644); err != nil {
					return err
				}
			}
		}
		// Both directories are synced first, so that the time for writing back earlier data is not measured.
		if _, err := r.sh(m.Dir, "sync -f . && sync -f "+clone); err != nil {
			return err
		}
		var p madeCheckpoint
		if _, err := r.afs(r.state, &p, "checkpoint", m.Dir); err != nil {
			return err
		}
		if p.Changed < 10_000 {
			r.wrong("checkpoint %+v", p)
		}
		start := time.Now()
		if _, err := r.sh(clone, "git add -A && git commit -qm new"); err != nil {
			return err
		}
		ours, theirs, pauses = append(ours, time.Duration(p.Took*1e6)), append(theirs, time.Since(start)),
			append(pauses, time.Duration(p.Paused*1e6))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	ratio := float64(percentile(theirs, 50)) / float64(percentile(ours, 50))
	r.row("checkpoint", "10,000 new files", fmt.Sprintf("%s, git add -A && git commit in a clone %s: %.1fx",
		seconds(percentile(ours, 50)), seconds(percentile(theirs, 50)), ratio), "3x", ratio >= 3)
	r.row("pause", "of this checkpoint, as its output states", seconds(slices.Max(pauses)), "20 ms",
		slices.Max(pauses) < 20*time.Millisecond)
	return nil
}
