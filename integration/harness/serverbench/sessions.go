package main

import (
	"cmp"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/server/client"
)

// credentials returns the environment of artifactfs with the credentials for a remote, and for a session remote on the
// same server.
func (b *bench) credentials(r remote) []string {
	if r.token == "" {
		return nil
	}
	return []string{"ARTIFACTFS_TOKEN=" + r.token, "ARTIFACTFS_SESSION_TOKEN=" + cmp.Or(r.saved, r.token)}
}

// working is a mount with a session.
type working struct {
	b     *bench
	state string
	dir   string
	r     remote
}

// workIn mounts a remote on a server with a new session. The session remote is the same repository.
func (b *bench) workIn(p place, r remote) (*working, error) {
	w := &working{b, b.path("state-" + p.name()), b.path("mount-" + p.name()), r}
	_, err := b.afs(w.state, r, nil, "mount", r.url, w.dir, "--session", "work", "--session-remote", r.url,
		"--checkpoint", "off",
		"--wait", "git", "--prefetch", "none", "--history", "none")
	return w, err
}

func (w *working) end() error {
	_, err := w.b.afs(w.state, w.r, nil, "unmount", "--all", "--timeout", "10s")
	return err
}

// change writes ten new files.
func change(dir string, round int) error {
	for i := range 10 {
		text := fmt.Appendf(nil, "contents %d of round %d\n", i, round)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("changed%d-%d", round, i)), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint measures three durations: from the start of `artifactfs checkpoint` until its push is acknowledged, the
// part of this that `artifactfs sync` takes to wait for the push, and a push of a commit of the same files by stock
// git.
func (b *bench) checkpoint() error {
	works, clones := map[string]*working{}, map[string]string{}
	remotes := map[string]remote{}
	pushing := map[string][]time.Duration{}
	defer func() {
		for _, w := range works {
			w.end()
		}
	}()
	ours, err := b.each(b.rounds, func(p place, round int) (time.Duration, error) {
		if round == 0 {
			r, _, err := b.filled(p, "checkpointed", b.repos[0])
			if err != nil {
				return 0, err
			}
			remotes[p.name()] = r
			if works[p.name()], err = b.workIn(p, r); err != nil {
				return 0, err
			}
		}
		w := works[p.name()]
		if err := change(w.dir, round); err != nil {
			return 0, err
		}
		start := time.Now()
		if _, err := b.afs(w.state, w.r, nil, "checkpoint", w.dir); err != nil {
			return 0, err
		}
		pushed, err := b.afs(w.state, w.r, nil, "sync", w.dir, "--timeout", "60s")
		pushing[p.name()] = append(pushing[p.name()], pushed)
		return time.Since(start), err
	})
	if err != nil {
		return err
	}
	var syncs []time.Duration
	for _, p := range b.places {
		times := slices.Sorted(slices.Values(pushing[p.name()]))
		syncs = append(syncs, times[len(times)/2])
	}
	theirs, err := b.each(b.rounds, func(p place, round int) (time.Duration, error) {
		r := remotes[p.name()]
		if round == 0 {
			clones[p.name()] = b.path("clone-" + p.name())
			if _, err := git(b.ctx, b.work, r, "clone", "-q", r.url, clones[p.name()]); err != nil {
				return 0, err
			}
		}
		dir := clones[p.name()]
		if err := change(dir, round); err != nil {
			return 0, err
		}
		for _, args := range [][]string{{"add", "-A"}, {"commit", "-qm", "Change"}} {
			if _, err := git(b.ctx, dir, remote{}, args...); err != nil {
				return 0, err
			}
		}
		return git(b.ctx, dir, r, "push", "-q", "origin", "main")
	})
	if err != nil {
		return err
	}
	b.table.times(fmt.Sprintf("checkpoint of ten files and its push, median of %d", b.rounds), ours, 0)
	b.table.times("of this, artifactfs sync, which waits for the push", syncs, 0)
	b.table.times(fmt.Sprintf("git push of the same files, median of %d", b.rounds), theirs, 0)
	backend := len(b.places) - 1
	for _, r := range []struct {
		what     string
		mine, of time.Duration
	}{
		{"checkpoint and push, ours / the same to http-backend", ours[0], ours[backend]},
		{"artifactfs sync, ours / git push to http-backend", syncs[0], theirs[backend]},
		{"git push, ours / git push to http-backend", theirs[0], theirs[backend]},
	} {
		by := float64(r.mine) / float64(r.of)
		b.table.line(r.what, fmt.Sprintf("<= %.1f", goalCheckpoint), by <= goalCheckpoint, fmt.Sprintf("%.2f", by))
	}
	return nil
}

// manySessions creates sessions of the large repository one after the other and mounts them. There are two kinds: thin
// sessions, whose repositories contain only the changes of the session, and sessions in forks of the large repository.
func (b *bench) manySessions() error {
	base, _, err := b.base(b.ours)
	if err != nil {
		return err
	}
	for _, kind := range []struct {
		name  string
		every int // only every N-th session is mounted
		run   func(base remote, i int, mount bool) (time.Duration, error)
	}{
		{"thin sessions", b.every, b.thinSession},
		{"forks", max(1, b.sessions/20), b.forkSession},
	} {
		before, err := diskUsage(b.ours.dir())
		if err != nil {
			return err
		}
		var times []time.Duration
		for i := range b.sessions {
			mount := i%kind.every == 0 || i == b.sessions-1
			took, err := kind.run(base, i, mount)
			if err != nil {
				return fmt.Errorf("create session: %s number %d: %w", kind.name, i+1, err)
			}
			if mount {
				times = append(times, took)
			}
			if i > 0 && i%100 == 0 {
				log.Printf("%s: %d made", kind.name, i)
			}
		}
		after, err := diskUsage(b.ours.dir())
		if err != nil {
			return err
		}
		first, last := times[0], times[len(times)-1]
		slices.Sort(times)
		b.table.line(fmt.Sprintf("%d %s of the large repository, %d of them mounted, changed, saved, unmounted", b.sessions,
			kind.name, len(times)),
			"", true, fmt.Sprintf("create and mount: first %s, last %s, median %s, longest %s; %s stored for each (%s objects)",
				seconds(first),
				seconds(last), seconds(times[len(times)/2]), seconds(times[len(times)-1]),
				kib((after.bytes-before.bytes)/int64(b.sessions)),
				kib((after.objects-before.objects)/int64(b.sessions))))
	}
	if _, err := b.afs(b.path("state-sessions"), remote{}, nil, "unmount", "--all", "--timeout", "10s"); err != nil {
		return err
	}
	b.table.line("memory of the server after that", "", true, mib(resident(b.ours.pid())))
	return nil
}

// thinSession creates an empty repository as a session remote, mounts the base with a new session, changes ten files,
// and waits until they are pushed. It returns the time until the mount could be listed. All mounts use one state
// directory, as on one machine. If mount is false, stock git pushes ten files instead.
func (b *bench) thinSession(base remote, i int, mount bool) (time.Duration, error) {
	start := time.Now()
	made, err := b.ours.c.CreateRepo(b.ctx, space, client.CreateRepo{Name: fmt.Sprint("thin", i)})
	if err != nil {
		return 0, err
	}
	own := remote{url: made.Remote, header: "Authorization: Bearer " + made.Token, token: made.Token}
	if !mount {
		return 0, b.pushTen(own, i)
	}
	return b.session(start, b.path("state-sessions"), base, own, fmt.Sprint("thin", i))
}

// pushTen pushes a commit of ten files to a repository.
func (b *bench) pushTen(r remote, round int) error {
	dir := b.path("ten")
	if _, err := os.Stat(dir); err != nil {
		if _, err := git(b.ctx, "", remote{}, "init", "-q", "-b", "main", dir); err != nil {
			return err
		}
	}
	if err := change(dir, round); err != nil {
		return err
	}
	if err := b.commit(dir, 0); err != nil {
		return err
	}
	if _, err := git(b.ctx, dir, r, "push", "-q", r.url, "main"); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// forkSession forks the base, mounts the fork with a session whose session remote is the fork, changes ten files, and
// waits until they are pushed. It returns the time until the mount could be listed.
func (b *bench) forkSession(_ remote, i int, mount bool) (time.Duration, error) {
	start := time.Now()
	fork, err := b.ours.fork(b.ctx, "base", fmt.Sprint("session", i))
	if err != nil || !mount {
		return time.Since(start), err
	}
	state := b.path(fmt.Sprint("state-fork", i))
	defer os.RemoveAll(state)
	took, err := b.session(start, state, fork, fork, fmt.Sprint("session", i))
	_, err2 := b.afs(state, remote{}, nil, "unmount", "--all", "--timeout", "10s")
	return took, errors.Join(err, err2)
}

// session mounts a remote with a session, lists the mount, changes ten files, waits until they are pushed, and
// unmounts. It returns the time from start until the list was complete.
func (b *bench) session(start time.Time, state string, r, own remote, name string) (time.Duration, error) {
	dir := b.path("sessions", name)
	both := remote{url: r.url, token: r.token, saved: own.token}
	if _, err := b.afs(state, both, nil, "mount", r.url, dir, "--session", name, "--session-remote", own.url,
		"--checkpoint", "off",
		"--prefetch", "none", "--history", "none"); err != nil {
		return 0, err
	}
	_, err := os.ReadDir(dir)
	took := time.Since(start)
	if err == nil {
		err = change(dir, 0)
	}
	if err == nil {
		_, err = b.afs(state, both, nil, "checkpoint", dir)
	}
	if err == nil {
		_, err = b.afs(state, both, nil, "sync", dir, "--timeout", "60s")
	}
	_, err2 := b.afs(state, both, nil, "unmount", dir)
	return took, errors.Join(err, err2)
}
