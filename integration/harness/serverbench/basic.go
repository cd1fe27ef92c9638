package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// These constants are the project's goals for its own server.
const (
	goalCreate     = 5 * time.Millisecond
	goalFork       = 50 * time.Millisecond
	goalForkBytes  = 64 << 10
	goalRestMemory = 64 << 20
	goalRestDisk   = 10 << 10
	goalCheckpoint = 1.2 // maximum ratio of the duration of a checkpoint to that of a git push to git http-backend
)

// prepare creates the repositories that the user has not passed as arguments.
func (b *bench) prepare() error {
	if len(b.repos) == 0 {
		dir := b.path("source", "small.git")
		if err := makeRepository(dir, 1000, 200); err != nil {
			return err
		}
		b.repos = []string{dir}
	}
	if b.large == "" && (b.only.MatchString("fork") || b.only.MatchString("mount") || b.only.MatchString("sessions")) {
		b.large = b.path("source", "large.git")
		if err := makeRepository(b.large, 110_000, 3); err != nil {
			return err
		}
	}
	for i, repo := range b.repos {
		abs, err := filepath.Abs(repo)
		if err != nil {
			return err
		}
		b.repos[i] = abs
	}
	return nil
}

// makeRepository creates a bare repository with a first commit of many files, 100 in each directory, and further
// commits that change one file each.
func makeRepository(dir string, files, commits int) error {
	r, err := gittest.New(dir, gittest.RepoOptions{})
	if err != nil {
		return err
	}
	all := make(map[string]gittest.File, files)
	for i := range files {
		all[fmt.Sprintf("d%04d/f%05d.txt", i/100, i)] =
			gittest.File{Data: fmt.Appendf(nil, "file %d\n%s\n", i, strings.Repeat("some text of it ", 1+i%9))}
	}
	if _, err := r.Commit("main", all, "All files"); err != nil {
		return err
	}
	_, err = r.History(commits)
	return err
}

// each calls do for every server, rounds times, and returns the median duration for each server.
func (b *bench) each(rounds int, do func(p place, round int) (time.Duration, error)) ([]time.Duration, error) {
	all := make([][]time.Duration, len(b.places))
	for round := range rounds { // the servers take turns, so that a busy moment of the machine affects all of them
		for i, p := range b.places {
			took, err := do(p, round)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name(), err)
			}
			all[i] = append(all[i], took)
		}
	}
	var medians []time.Duration
	for _, times := range all {
		slices.Sort(times)
		medians = append(medians, times[len(times)/2])
	}
	return medians, nil
}

// create measures how long the creation of an empty repository takes.
func (b *bench) create() error {
	medians, err := b.each(5*b.rounds, func(p place, round int) (time.Duration, error) {
		start := time.Now()
		_, err := p.create(b.ctx, fmt.Sprint("created", round))
		return time.Since(start), err
	})
	if err != nil {
		return err
	}
	b.table.times(fmt.Sprintf("create a repository, median of %d", 5*b.rounds), medians, goalCreate)
	return nil
}

// filled creates a repository on a server and pushes the branch main of the repository source to it. It returns the
// duration of the push.
func (b *bench) filled(p place, name, source string) (remote, time.Duration, error) {
	r, err := p.create(b.ctx, name)
	if err != nil {
		return r, 0, err
	}
	took, err := git(b.ctx, source, r, "push", "-q", r.url, "HEAD:refs/heads/main")
	return r, took, err
}

// clone measures the first push to a repository, full clones, and blobless clones.
func (b *bench) clone() error {
	for _, repo := range b.repos {
		name := strings.TrimSuffix(filepath.Base(strings.TrimSuffix(repo, "/repo")), ".git")
		remotes := map[string]remote{}
		firsts, err := b.each(1, func(p place, _ int) (time.Duration, error) {
			r, took, err := b.filled(p, "cloned-"+strings.ReplaceAll(name, "+", "-"), repo)
			remotes[p.name()] = r
			return took, err
		})
		if err != nil {
			return err
		}
		b.table.times("first push of "+name, firsts, 0)
		for _, kind := range []struct {
			what string
			args []string
		}{
			{"git clone --bare", []string{"--bare"}},
			{"git clone --filter=blob:none --bare", []string{"--bare", "--filter=blob:none"}},
			{"git clone --depth 1 --bare", []string{"--bare", "--depth", "1"}},
		} {
			medians, err := b.each(3, func(p place, round int) (time.Duration, error) {
				into := b.path("clone")
				defer os.RemoveAll(into)
				r := remotes[p.name()]
				return git(b.ctx, b.work, r, append(append([]string{"clone", "-q"}, kind.args...), r.url, into)...)
			})
			if err != nil {
				return err
			}
			b.table.times(fmt.Sprintf("%s of %s, median of 3", kind.what, name), medians, 0)
		}
	}
	return nil
}

// push measures the push of one commit with one changed file.
func (b *bench) push() error {
	clones, remotes := map[string]string{}, map[string]remote{}
	medians, err := b.each(b.rounds, func(p place, round int) (time.Duration, error) {
		if round == 0 {
			r, _, err := b.filled(p, "pushed", b.repos[0])
			if err != nil {
				return 0, err
			}
			clones[p.name()], remotes[p.name()] = b.path("work-"+p.name()), r
			if _, err := git(b.ctx, b.work, r, "clone", "-q", r.url, clones[p.name()]); err != nil {
				return 0, err
			}
		}
		if err := b.commit(clones[p.name()], round); err != nil {
			return 0, err
		}
		return git(b.ctx, clones[p.name()], remotes[p.name()], "push", "-q", "origin", "main")
	})
	if err != nil {
		return err
	}
	b.table.times(fmt.Sprintf("push of one commit, median of %d", b.rounds), medians, 0)
	return nil
}

// commit commits a new file in a clone.
func (b *bench) commit(clone string, n int) error {
	if err := os.WriteFile(filepath.Join(clone, fmt.Sprint("new", n)), fmt.Appendln(nil, "contents", n),
		0o644); err != nil {
		return err
	}
	if _, err := git(b.ctx, clone, remote{}, "add", "-A"); err != nil {
		return err
	}
	_, err := git(b.ctx, clone, remote{}, "commit", "-qm", "Change")
	return err
}

// pushes measures simultaneous pushes, each to a different repository.
func (b *bench) pushes() error {
	var walls, medians []time.Duration
	var memory []string
	for _, p := range b.places {
		remotes, clones := make([]remote, b.crowd), make([]string, b.crowd)
		for i := range b.crowd {
			r, err := p.create(b.ctx, fmt.Sprint("crowd", i))
			if err != nil {
				return err
			}
			remotes[i], clones[i] = r, b.path("crowd", p.name(), fmt.Sprint(i))
			if _, err := git(b.ctx, "", remote{}, "init", "-q", "-b", "main", clones[i]); err != nil {
				return err
			}
			if err := b.commit(clones[i], i); err != nil {
				return err
			}
		}
		times, failures := make([]time.Duration, b.crowd), make([]error, b.crowd)
		watch, done := context.WithCancel(b.ctx)
		most := peak(watch, p.pid())
		var all sync.WaitGroup
		start := time.Now()
		for i := range b.crowd {
			all.Go(func() {
				times[i], failures[i] = git(b.ctx, clones[i], remotes[i], "push", "-q", remotes[i].url, "main")
			})
		}
		all.Wait()
		walls = append(walls, time.Since(start))
		done()
		if err := errors.Join(failures...); err != nil {
			return fmt.Errorf("%s: %w", p.name(), err)
		}
		slices.Sort(times)
		medians = append(medians, times[len(times)/2])
		memory = append(memory, mib(<-most))
	}
	b.table.times(fmt.Sprintf("%d pushes at the same time to %d repositories, until all are done", b.crowd, b.crowd),
		walls, 0)
	b.table.times("median of these pushes", medians, 0)
	b.table.line("most memory of the server and its git processes meanwhile", "", true, memory...)
	return nil
}
