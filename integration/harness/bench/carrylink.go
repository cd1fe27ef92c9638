package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// linkTries is the number of times that each command is measured. Each measurement starts with an empty state
// directory.
const linkTries = 5

// links measures commands that use a link to a session in an empty state directory, while the session is mounted from
// another state directory.
func (r *rig) links(o carryOptions) error {
	for _, kind := range []string{"thin", "shared"} {
		if err := r.link(kind); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

// link measures the commands with one kind of session remote. With kind "thin", the session remote contains only
// sessions. With kind "shared", it also contains the mounted repository.
func (r *rig) link(kind string) error {
	c, server, url, err := r.receiver(false, r.rtt)
	if err != nil {
		return err
	}
	defer server.Close()
	if kind == "shared" {
		if err := os.WriteFile(filepath.Join(c.Path, "objects", "info", "alternates"),
			[]byte(filepath.Join(r.repo, "objects")+"\n"), 0o644); err != nil {
			return err
		}
		if _, err := r.sh(c.Path, "git fetch -q "+r.repo+" 'refs/heads/*:refs/heads/*'"); err != nil {
			return err
		}
	}
	// The commands of the simulated second machine use a separate server for the same repositories, so that their
	// requests can be counted.
	far, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(c.Path), RTT: r.rtt, Cheap: true,
		Stderr: os.Stderr})
	if err != nil {
		return err
	}
	defer far.Close()
	state := r.path("state")
	m, _, err := r.mount(state, "--session", "work", "--session-remote", url, "--wait", "git", "--prefetch", "none",
		"--history", "none")
	if err != nil {
		return err
	}
	// The daemon must end before the servers do.
	defer func() { _ = r.end(state) }()
	files, err := r.sh(m.Dir, "git ls-files | wc -l; n=$(git ls-files | wc -l)\n"+
		"git ls-files | grep -v '[^A-Za-z0-9/_.-]' | awk \"NR%int($n/110)==1\" | head -100 | while read f; do echo changed >>$f; done\n"+
		"git commit -qam changes; echo untracked >untracked.txt")
	if err != nil {
		return err
	}
	var p madeCheckpoint
	if _, err := r.afs(state, &p, "checkpoint", m.Dir, "--sync"); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	commits := make(chan []string, 1)
	var failed error
	go func() {
		var made []string
		for n := 0; ctx.Err() == nil && failed == nil; n++ {
			var id string
			if id, failed = r.sh(m.Dir,
				fmt.Sprintf("echo %d >>mine.txt; git add mine.txt; git commit -qm 'mine %d'; git rev-parse HEAD", n,
					n)); failed == nil {
				made = append(made, id)
			}
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		commits <- made
	}()
	err = r.linked(kind, far, strings.TrimSpace(files), p)
	stop()
	made := <-commits
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if _, err := r.afs(state, nil, "sync", m.Dir, "--timeout", "1m"); err != nil {
		return err
	}
	st, err := r.status(state, m.Dir)
	if err != nil {
		return err
	}
	lost := 0
	if kind == "shared" { // stock git cannot read the objects in a container
		all, err := r.sh(c.Path, "git rev-list --all")
		if err != nil {
			return err
		}
		for _, id := range made {
			if !strings.Contains(all, id) {
				lost++
			}
		}
	}
	r.row("link", kind+": commits of the first session meanwhile",
		fmt.Sprintf("%d, %d lost, %d pending, %d diverged", len(made), lost, st.Session.Pending, len(st.Session.Diverged)),
		"none lost", lost+int(st.Session.Pending)+len(st.Session.Diverged) == 0)
	return nil
}

// linked runs and measures the commands of the simulated second machine.
func (r *rig) linked(kind string, far *gittest.Server, files string, p madeCheckpoint) error {
	remote := far.URL("s.git")
	link := remote + "#session=work@" + p.ID
	dir := ""
	for _, what := range []struct {
		name string
		args func() []string
		goal string
		most time.Duration
	}{
		{"session list", func() []string { return []string{"session", "list", "--session-remote", remote} }, "", 0},
		{"session show", func() []string { return []string{"session", "show", link} }, "", 0},
		{"session fork and ls", func() []string {
			dir = r.path("fork")
			return []string{"session", "fork", link, dir, "--prefetch", "none"}
		}, "600 ms", 600 * time.Millisecond},
	} {
		var times []time.Duration
		requests, turns := "", ""
		for i := range linkTries {
			state := r.path("state")
			r.server.Log().Reset()
			far.Log().Reset()
			var any struct{ Network struct{} }
			took, err := r.afs(state, &any, what.args()...)
			if err != nil {
				return err
			}
			if dir != "" {
				ls, err := timed("ls", dir)
				if err != nil {
					return err
				}
				took += ls
			}
			times = append(times, took)
			if i == 0 {
				requests = fmt.Sprintf("%d to the session remote, %d to the remote", len(far.Log().Requests()),
					len(r.server.Log().Requests()))
				turns = fmt.Sprintf("%d and %d", far.Log().RoundTrips(), r.server.Log().RoundTrips())
			}
			if dir != "" && i == 0 {
				if err := r.forked(state, dir, kind, files); err != nil {
					return err
				}
			}
			if err := r.end(state); err != nil {
				return err
			}
		}
		slices.Sort(times)
		median := percentile(times, 50)
		r.row("link", kind+": "+what.name, fmt.Sprintf("median %s, longest %s", seconds(median),
			seconds(times[len(times)-1])), what.goal, what.most == 0 || median <= what.most)
		r.row("link", kind+": "+what.name, requests+"; round trips "+turns, "", true)
	}
	if kind != "shared" {
		return nil
	}
	for _, args := range [][]string{{"clone", "-q", "--filter=blob:none"}, {"clone", "-q", "--depth", "1"}} {
		clone := r.path("clone")
		cmd := exec.Command("git", append(args, "-b", "afs/work/main", remote, clone)...)
		cmd.Env = gittest.Env()
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %v: %w: %.300s", args, err, out)
		}
		r.row("link", "instead: git "+strings.Join(args, " ")+", without what is not committed",
			seconds(time.Since(start)), "", true)
		if err := os.RemoveAll(clone); err != nil {
			return err
		}
	}
	return nil
}

// forked returns an error if the files, the history or the status of a fork at dir are wrong.
func (r *rig) forked(state, dir, kind, files string) error {
	st, err := r.status(state, dir)
	if err != nil {
		return err
	}
	r.row("link", kind+": contents fetched by the fork until something is read", fmt.Sprint(st.Network.Blobs), "0",
		st.Network.Blobs == 0)
	got, err := r.sh(dir,
		"git ls-files | wc -l; git status --porcelain; git log -1 --format=%s; git show --stat --format= | wc -l")
	if err != nil {
		return err
	}
	if want := files + "\n?? untracked.txt\nchanges\n101"; strings.Join(strings.Fields(got),
		" ") != strings.Join(strings.Fields(want), " ") {
		r.wrong("the fork: got %q, want %q", got, want)
	}
	return nil
}

// join creates a repository whose tree contains the trees of the newest commits of several repositories, each in a
// separate directory. The repository uses the others as alternates.
func join(path string, repos []string) error {
	if err := exec.Command("git", "init", "-q", "--bare", "-b", "main", path).Run(); err != nil {
		return err
	}
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", append([]string{"--git-dir", path}, args...)...)
		cmd.Env = append(gittest.Env(), "GIT_INDEX_FILE="+filepath.Join(path, "joined"))
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("git %s: %w", args[0], err)
		}
		return strings.TrimSpace(string(out)), err
	}
	var alternates strings.Builder
	var heads []string
	for _, repo := range repos {
		out, err := exec.Command("git", "-C", repo, "rev-parse", "--path-format=absolute", "--git-path", "objects",
			"HEAD").Output()
		if err != nil {
			return fmt.Errorf("read repository %s: %w", repo, err)
		}
		at := strings.Fields(string(out))
		alternates.WriteString(at[0] + "\n")
		heads = append(heads, at[1])
	}
	if err := os.WriteFile(filepath.Join(path, "objects", "info", "alternates"), []byte(alternates.String()),
		0o644); err != nil {
		return err
	}
	for i, head := range heads {
		if _, err := git("read-tree", fmt.Sprintf("--prefix=part%d/", i), head); err != nil {
			return err
		}
	}
	tree, err := git("write-tree", "--missing-ok")
	if err != nil {
		return err
	}
	id, err := git("commit-tree", "-m", "All parts", tree)
	if err != nil {
		return err
	}
	_, err = git("update-ref", "refs/heads/main", id)
	return err
}
