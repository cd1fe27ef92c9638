package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// coldStart measures how long a mount with an empty state directory takes until the root directory can be read.
func (s *session) coldStart() error {
	m, err := s.mount("--prefetch", "none", "--history", "none")
	if err != nil {
		return err
	}
	ls, err := timed("ls", m.dir)
	if err != nil {
		return err
	}
	st, err := m.status()
	if err != nil {
		return err
	}
	root := m.took + ls
	if err := m.unmount(); err != nil {
		return err
	}
	shallow, err := s.git("clone", "-q", "--depth", "1", s.url, s.path("shallow"))
	if err != nil {
		return err
	}
	s.row("mount + ls", root, shallow, "git clone --depth 1",
		fmt.Sprintf("%d requests, %d blobs", st.Network.Requests, st.Network.Blobs))
	blobless, err := s.git("clone", "-q", "--filter=blob:none", "--no-checkout", s.url, s.path("blobless"))
	if err != nil {
		return err
	}
	s.row("mount + ls", root, blobless, "git clone --filter=blob:none -n", "")
	if s.fullClone {
		full, err := s.git("clone", "-q", s.url, s.path("full"))
		if err != nil {
			return err
		}
		s.row("mount + ls", root, full, "git clone", "")
	}
	return s.wholeTree()
}

// wholeTree measures how long a mount takes to fetch all trees, and how long git takes to fetch the same objects.
func (s *session) wholeTree() error {
	dir := s.path("trees")
	if _, err := s.git("init", "-q", "--bare", dir); err != nil {
		return err
	}
	theirs, err := s.git("-C", dir, "fetch", "-q", "--depth=2", "--filter=blob:none", s.url, "HEAD")
	if err != nil {
		return err
	}
	m, err := s.mount("--prefetch", "none", "--history", "none", "--wait", "git")
	if err != nil {
		return err
	}
	s.row("whole tree", time.Duration(m.reply.Timings.Trees)*time.Millisecond, theirs,
		"git fetch --depth=2 --filter=blob:none", fmt.Sprintf("%d files", m.reply.Files))
	return m.unmount()
}

// oneBlob measures reads of single files that are not fetched yet, over a connection that is already open. Each file is
// in a different directory if there are enough directories.
func (s *session) oneBlob() error {
	m, err := s.mount("--prefetch", "none", "--history", "none", "--wait", "git")
	if err != nil {
		return err
	}
	files, err := s.files()
	if err != nil {
		return err
	}
	times, err := m.sample(spread(files, 100))
	if err != nil {
		return err
	}
	s.row("one cold blob, median", percentile(times, 50), 0, "",
		fmt.Sprintf("99th percentile %s of %d", seconds(percentile(times, 99)), len(times)))
	return m.unmount()
}

// laziness counts the requests and blobs that are fetched when a program lists directories or reads single files.
func (s *session) laziness() error {
	for _, c := range []struct{ what, command string }{
		{"ls -R", "ls -R . >/dev/null"},
		{"cat of one file", `cat "$FILE" >/dev/null`},
		{"ls -l of the largest directory below 200", `ls -l "$DIR" >/dev/null`},
		{"find . -size +0", "find . -size +0 >/dev/null"},
	} {
		m, err := s.mount("--prefetch", "none", "--history", "none", "--wait", "git")
		if err != nil {
			return err
		}
		files, err := s.files()
		if err != nil {
			return err
		}
		before, err := m.status()
		if err != nil {
			return err
		}
		cmd := exec.Command("sh", "-c", c.command)
		cmd.Dir = m.dir
		dir, n := crowdedDir(files, 200)
		cmd.Env = append(os.Environ(), "FILE="+files[len(files)/2], "DIR="+dir)
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", c.command, err, out)
		}
		took := time.Since(start)
		after, err := m.status()
		if err != nil {
			return err
		}
		note := seconds(took)
		if strings.HasPrefix(c.what, "ls -l ") {
			note += fmt.Sprintf(", %d files", n)
		}
		s.count(c.what, fmt.Sprintf("%d requests, %d blobs", after.Network.Requests-before.Network.Requests,
			after.Network.Blobs-before.Network.Blobs), note)
		if err := m.unmount(); err != nil {
			return err
		}
	}
	return nil
}

// coldGrep measures a search through all files of a mount with an empty state directory, and a clone followed by the
// same search.
func (s *session) coldGrep() error {
	dir := s.path("grep")
	clone, err := s.git("clone", "-q", "--depth", "1", s.url, dir)
	if err != nil {
		return err
	}
	search, err := timedIn(dir, "grep", "-rc", "--exclude-dir=.git", "unlikely-to-be-found", ".")
	if err != nil {
		return err
	}
	m, err := s.mount()
	if err != nil {
		return err
	}
	ours, err := timedIn(m.dir, "grep", "-rc", "unlikely-to-be-found", ".")
	if err != nil {
		return err
	}
	st, err := m.status()
	if err != nil {
		return err
	}
	s.row("mount + grep -r", m.took+ours, clone+search, "git clone --depth 1 + grep -r",
		fmt.Sprintf("%d requests, %d blobs", st.Network.Requests, st.Network.Blobs))
	return m.unmount()
}

// readWhileHydrating measures single reads while all contents are fetched in the background.
func (s *session) readWhileHydrating() error {
	m, err := s.mount("--prefetch", "all", "--history", "none")
	if err != nil {
		return err
	}
	files, err := s.files()
	if err != nil {
		return err
	}
	rand.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	times, err := m.sample(files[:min(200, len(files))])
	if err != nil {
		return err
	}
	st, err := m.status()
	if err != nil {
		return err
	}
	s.row("read while hydrating, median", percentile(times, 50), 0, "",
		fmt.Sprintf("99th percentile %s of %d; at the end %d of %d blobs were fetched",
			seconds(percentile(times, 99)), len(times), st.Blobs.Fetched, st.Blobs.Total))
	return m.unmount()
}

// warm measures directory walks and searches in a mount whose files are all fetched and in a directory on the local
// disk. It also measures the memory of the daemon.
func (s *session) warm() error {
	m, err := s.mount("--prefetch", "all", "--history", "none", "--wait", "all")
	if err != nil {
		return err
	}
	dir := s.path("warm")
	if _, err := s.git("clone", "-q", "--depth", "1", s.url, dir); err != nil {
		return err
	}
	for _, c := range []struct {
		what string
		args []string
	}{
		{"warm find with stat", []string{"find", ".", "-path", "./.git", "-prune", "-o", "-size", "+1000000"}},
		{"warm grep -r", []string{"grep", "-rc", "--exclude-dir=.git", "unlikely-to-be-found", "."}},
	} {
		var best [2]time.Duration
		for i, where := range []string{m.dir, dir} {
			for range 3 {
				took, err := timedIn(where, c.args...)
				if err != nil {
					return err
				}
				if best[i] == 0 || took < best[i] {
					best[i] = took
				}
			}
		}
		s.row(c.what, best[0], best[1], "the same on the local disk", "")
	}
	rss, err := residentBytes(m.pid)
	if err != nil {
		return err
	}
	st, err := m.status()
	if err != nil {
		return err
	}
	allowed := 64<<20 + 300*st.Tree.Files
	s.count("daemon memory", fmt.Sprintf("%d MiB", rss>>20),
		fmt.Sprintf("%d files; 64 MiB + 300 bytes a path is %d MiB", st.Tree.Files, allowed>>20))
	return m.unmount()
}

// history waits until the mount has the whole history and compares the history with that of the source repository.
func (s *session) history() error {
	m, err := s.mount("--prefetch", "none", "--history", "full")
	if err != nil {
		return err
	}
	blobless, err := s.git("clone", "-q", "--filter=blob:none", "--no-checkout", s.url, s.path("history"))
	if err != nil {
		return err
	}
	git := filepath.Join(s.state, "mounts", m.reply.ID, "git")
	ours, err := output("git", "--git-dir", git, "rev-list", "--count", "HEAD")
	if err != nil {
		return err
	}
	theirs, err := output("git", "--git-dir", s.repo, "rev-list", "--count", "HEAD")
	if err != nil {
		return err
	}
	s.row("whole history", m.took, blobless, "git clone --filter=blob:none -n",
		fmt.Sprintf("%s commits of %s", ours, theirs))
	return m.unmount()
}

// sample reads files one after the other and returns the time of each read.
func (m *mounted) sample(files []string) ([]time.Duration, error) {
	var times []time.Duration
	for _, f := range files {
		start := time.Now()
		if _, err := os.ReadFile(filepath.Join(m.dir, f)); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times, nil
}

func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

// spread returns n of the given files. Each is in a different directory if there are enough directories.
func spread(files []string, n int) []string {
	seen := map[string]bool{}
	var picked, rest []string
	rand.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	for _, f := range files {
		if dir := filepath.Dir(f); !seen[dir] {
			seen[dir] = true
			picked = append(picked, f)
		} else {
			rest = append(rest, f)
		}
	}
	picked = append(picked, rest...)
	return picked[:min(n, len(picked))]
}

// crowdedDir returns the directory that directly contains the most files, not counting directories with more than limit
// files. It also returns the number of files.
func crowdedDir(files []string, limit int) (string, int) {
	n := map[string]int{}
	for _, f := range files {
		n[filepath.Dir(f)]++
	}
	best := "."
	for dir, count := range n {
		if count <= limit && count > n[best] || n[best] > limit {
			best = dir
		}
	}
	return best, n[best]
}

// residentBytes returns the resident memory of a process in bytes. This includes heap memory that the process has freed
// but not returned to the kernel.
func residentBytes(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(status, []byte("VmRSS:"))
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0, fmt.Errorf("read memory of process %d: no line VmRSS", pid)
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	return kib << 10, err
}
