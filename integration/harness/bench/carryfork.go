package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// forks measures how long it takes to fork a session from a checkpoint of another session.
func (r *rig) forks(o carryOptions) error {
	m, _, err := r.mount(r.state, "--session", "work", "--wait", "git", "--prefetch", "none", "--history", "none")
	if err != nil {
		return err
	}
	var script strings.Builder
	for i := range 100 {
		fmt.Fprintf(&script, "echo changed >>%s\n", filePath(i*o.files/100))
	}
	if _, err := r.sh(m.Dir, script.String()+"git add "+filePath(0)); err != nil {
		return err
	}
	var p madeCheckpoint
	if _, err := r.afs(r.state, &p, "checkpoint", m.Dir); err != nil {
		return err
	}
	want, err := r.look(m.Dir)
	if err != nil {
		return err
	}
	r.server.Log().Reset()
	size, err := r.sh(r.state, "du -sk . | cut -f 1")
	if err != nil {
		return err
	}
	var times []time.Duration
	var dirs []string
	for i := range 10 {
		dir := r.path("fork")
		var f carriedMount
		took, err := r.afs(r.state, &f, "session", "fork", p.ID, dir, "-C", m.Dir, "--session", fmt.Sprint("fork", i))
		if err != nil {
			return err
		}
		ls, err := timed("ls", dir)
		if err != nil {
			return err
		}
		times, dirs = append(times, took+ls), append(dirs, dir)
	}
	asked, objects := 0, 0
	for _, q := range r.server.Log().Fetches() {
		asked++
		objects += q.Objects
	}
	after, err := r.sh(r.state, "du -sk . | cut -f 1")
	if err != nil {
		return err
	}
	var kib [2]int
	fmt.Sscan(size+" "+after, &kib[0], &kib[1])
	slices.Sort(times)
	r.row("fork", fmt.Sprintf("10 forks with ls, %d files, 100 changed", o.files),
		fmt.Sprintf("median %s, longest %s", seconds(percentile(times, 50)), seconds(times[9])), "200 ms",
		times[9] < 200*time.Millisecond)
	r.row("fork", "fetched; disk", fmt.Sprintf("%d requests for %d objects; %d KiB each", asked, objects,
		(kib[1]-kib[0])/10), "0 objects", objects == 0)
	for i, dir := range dirs {
		if i < 3 {
			is, err := r.look(dir)
			if err != nil {
				return err
			}
			if d := want.Differs(is); d != "" {
				r.wrong("fork %d: %s", i, d)
			}
		}
		if _, err := r.sh(dir, fmt.Sprintf("echo %d >mine; echo %d >>%s; git add mine; git commit -qm fork%d", i, i,
			filePath(0), i)); err != nil {
			return err
		}
	}
	apart := 0
	for i, dir := range dirs {
		mine, _ := os.ReadFile(filepath.Join(dir, "mine"))
		file, _ := os.ReadFile(filepath.Join(dir, filePath(0)))
		if string(mine) == fmt.Sprintln(i) && strings.HasSuffix(string(file), fmt.Sprintf("changed\n%d\n", i)) {
			apart++
		}
	}
	now, err := r.look(m.Dir)
	if err != nil {
		return err
	}
	if d := want.Differs(now); d != "" {
		r.wrong("the parent: %s", d)
	}
	r.row("fork", "forks that differ from the parent and from each other", fmt.Sprintf("%d of %d", apart, len(dirs)),
		"all", apart == len(dirs))
	return nil
}

// resume measures how long it takes to resume a session in another state directory, over a connection with the
// round-trip time of the rig.
func (r *rig) resume(o carryOptions) error {
	c, server, url, err := r.receiver(true, r.rtt)
	if err != nil {
		return err
	}
	defer server.Close()
	flags := []string{"--session", "work", "--session-remote", url, "--prefetch", "none"}
	m, _, err := r.mount(r.state, append(flags, "--wait", "git")...)
	if err != nil {
		return err
	}
	var script strings.Builder
	for i := range 100 {
		fmt.Fprintf(&script, "echo changed >>%s\n", filePath(i*50))
	}
	script.WriteString("git switch -qc topic; git add " + filePath(0) + " " + filePath(50) +
		"; git commit -qm topic; git add " + filePath(100) + "; echo more >>" + filePath(100) + "; git rm -q " + filePath(7) +
		"; rm " + filePath(8) +
		"; mv " + filePath(9) + " moved; chmod +x " + filePath(10) +
		"; mkdir -p new/deep; echo new >new/deep/file; ln -s moved link; echo stash >>" + filePath(11) +
		"; git stash push -q " + filePath(11))
	if _, err := r.sh(m.Dir, script.String()); err != nil {
		return err
	}
	var p madeCheckpoint
	if _, err := r.afs(r.state, &p, "checkpoint", m.Dir, "--sync"); err != nil {
		return err
	}
	want, err := r.look(m.Dir)
	if err != nil {
		return err
	}
	if err := r.end(r.state); err != nil {
		return err
	}
	var mounts, lists []time.Duration
	for i := range 5 {
		state := r.path("state")
		r.server.Log().Reset()
		server.Log().Reset()
		again, took, err := r.mount(state, flags...)
		if err != nil {
			return err
		}
		start := time.Now()
		if _, err := r.sh(again.Dir, "ls >/dev/null"); err != nil {
			return err
		}
		ls := took + time.Since(start)
		mounts, lists = append(mounts, took), append(lists, ls)
		if i == 0 {
			r.row("resume", "round trips until then, remote and session remote",
				fmt.Sprintf("%d and %d", r.server.Log().RoundTrips(), server.Log().RoundTrips()), "", true)
			if _, err := r.sh(again.Dir, "find . -name .git -prune -o -type f -print >/dev/null"); err != nil {
				return err
			}
			st, err := r.status(state, again.Dir)
			if err != nil {
				return err
			}
			r.row("resume", "blobs fetched until something is read", fmt.Sprint(st.Network.Blobs), "0", st.Network.Blobs == 0)
			is, err := r.look(again.Dir)
			if err != nil {
				return err
			}
			d := want.Differs(is)
			if d != "" {
				r.wrong("resumed: %s", d)
			}
			r.row("resume", "files, index, HEAD, branch, refs, stashes, status",
				map[bool]string{true: "as before", false: "differ"}[d == ""], "as before", d == "")
		}
		if err := r.end(state); err != nil {
			return err
		}
	}
	slices.Sort(mounts)
	slices.Sort(lists)
	r.row("resume", fmt.Sprintf("mount, over %s", r.rtt),
		fmt.Sprintf("median of %d %s", len(mounts), seconds(percentile(mounts, 50))), "", true)
	r.row("resume", "and ls", fmt.Sprintf("median %s", seconds(percentile(lists, 50))), "", true)
	return r.checkRepo(c.Path)
}

// seeding measures how long the first push of a session to an empty session remote takes.
func (r *rig) seeding(o carryOptions) error {
	c, server, url, err := r.receiver(false, r.rtt)
	if err != nil {
		return err
	}
	defer server.Close()
	m, _, err := r.mount(r.state, "--session", "work", "--session-remote", url, "--wait", "git", "--prefetch", "none",
		"--history", "none")
	if err != nil {
		return err
	}
	r.server.Log().Reset()
	start := time.Now()
	if _, err := r.sh(m.Dir, "echo new >new; git add new; git commit -qm new"); err != nil {
		return err
	}
	shown := r.path("shown")
	command := fmt.Sprintf("%s --state %s sync %s --timeout 5m", filepath.Join(r.bin, "artifactfs"), r.state, m.Dir)
	// script(1) runs the command on a terminal
	if _, err := r.sh(r.dir, "script -qec '"+command+"' "+shown+" >/dev/null"); err != nil {
		return err
	}
	took := time.Since(start)
	text, _ := os.ReadFile(shown)
	progress := strings.Count(string(text), "\r") + strings.Count(string(text), "\n")
	n := len(r.server.Log().Requests())
	st, err := r.status(r.state, m.Dir)
	if err != nil {
		return err
	}
	r.row("seed", "requests to the remote", fmt.Sprintf("%d, in %s; mode %s, %d pending", n, seconds(took),
		st.Session.Mode, st.Session.Pending), "5", n <= 5)
	if n > 5 {
		fmt.Fprint(os.Stderr, r.server.Log())
	}
	r.row("seed", "progress on a terminal", fmt.Sprintf("%d lines, the last: %.80q", progress, lastLine(string(text))),
		"some", progress > 1)
	clone := r.path("clone")
	if _, err := r.sh(r.dir, "git clone -q "+url+" "+clone); err != nil {
		return err
	}
	files, err := r.sh(clone, "git status --porcelain; git ls-files | wc -l")
	if err != nil {
		return err
	}
	r.row("seed", "a clone has", strings.TrimSpace(files)+" files", "", true)
	return r.checkRepo(c.Path)
}

func lastLine(text string) string {
	fields := strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' })
	for _, f := range slices.Backward(fields) {
		if !strings.HasPrefix(f, "Script ") {
			return f
		}
	}
	return ""
}
