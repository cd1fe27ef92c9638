package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// base returns the large repository on a server. The first call for each server pushes the repository and also returns
// the duration of the push.
func (b *bench) base(p place) (remote, time.Duration, error) {
	if r, ok := b.based[p.name()]; ok {
		return r, 0, nil
	}
	r, took, err := b.filled(p, "base", b.large)
	if err == nil {
		b.based[p.name()] = r
	}
	return r, took, err
}

// fork measures the duration and the disk space of forks of the large repository.
func (b *bench) fork() error {
	firsts, err := b.each(1, func(p place, _ int) (time.Duration, error) {
		_, took, err := b.base(p)
		return took, err
	})
	if err != nil {
		return err
	}
	b.table.times("first push of the large repository", firsts, 0)
	const rounds = 10
	if err := b.ours.again(b.ctx); err != nil {
		return err
	}
	before := map[string]usage{}
	for _, p := range b.places {
		u, err := diskUsage(p.dir())
		if err != nil {
			return err
		}
		before[p.name()] = u
	}
	medians, err := b.each(rounds, func(p place, round int) (time.Duration, error) {
		if g, is := p.(*forge); is {
			if err := g.prepareFork(b.ctx); err != nil {
				return 0, err
			}
		}
		start := time.Now()
		_, err := p.fork(b.ctx, "base", fmt.Sprint("fork", round))
		return time.Since(start), err
	})
	if err != nil {
		return err
	}
	b.table.times(fmt.Sprintf("fork of the large repository, median of %d", rounds), medians, goalFork)
	if err := b.ours.again(b.ctx); err != nil {
		return err
	}
	var texts []string
	var mine int64
	for i, p := range b.places {
		u, err := diskUsage(p.dir())
		if err != nil {
			return err
		}
		was := before[p.name()]
		each := (u.bytes - u.cache - was.bytes + was.cache) / rounds
		if i == 0 {
			mine = each
		}
		texts = append(texts, kib(each))
	}
	b.table.line("disk space of a fork, without replicas", fmt.Sprintf("< %d KiB", goalForkBytes>>10),
		mine < goalForkBytes, texts...)
	return nil
}

func kib(n int64) string { return fmt.Sprintf("%.1f KiB", float64(n)/1024) }

// afs runs artifactfs with a state directory, decodes its output as JSON into the value that into points to, and
// returns the duration.
func (b *bench) afs(state string, r remote, into any, args ...string) (time.Duration, error) {
	args = append([]string{"--state", state}, args...)
	if into != nil {
		args = append(args, "--json")
	}
	cmd := exec.CommandContext(b.ctx, filepath.Join(b.bin, "artifactfs"), args...)
	cmd.Dir, cmd.Env = b.work, append(gittest.Env(), b.credentials(r)...)
	cmd.WaitDelay = time.Second // a daemon that the command has started may keep the output of the command open
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil && err != exec.ErrWaitDelay {
		return took, fmt.Errorf("artifactfs %s: %w: %.500s", args[2], err, bytes.TrimSpace(stderr.Bytes()))
	}
	if into == nil {
		return took, nil
	}
	if err := json.Unmarshal(stdout.Bytes(), into); err != nil {
		return took, fmt.Errorf("artifactfs %s printed %.80q: %w", args[2], stdout.Bytes(), err)
	}
	return took, nil
}

// mountStatus holds the fields of the output of artifactfs status that are used here.
type mountStatus struct {
	Network struct{ Requests, Blobs int64 }
}

// mounted mounts a remote with a new state directory, lists the root directory, and unmounts. It returns the time until
// the list was complete, and the number of requests.
func (b *bench) mounted(r remote, flags ...string) (time.Duration, int64, error) {
	b.states++
	state, dir := b.path(fmt.Sprint("state", b.states)), b.path(fmt.Sprint("m", b.states))
	defer os.RemoveAll(state)
	defer b.afs(state, r, nil, "unmount", "--all", "--timeout", "5s")
	start := time.Now()
	if _, err := b.afs(state, r, nil, append([]string{"mount", r.url, dir}, flags...)...); err != nil {
		return 0, 0, err
	}
	if _, err := os.ReadDir(dir); err != nil {
		return 0, 0, err
	}
	took := time.Since(start)
	var st mountStatus
	_, err := b.afs(state, r, &st, "status", dir)
	return took, st.Network.Requests, err
}

// mount compares the first mount of a fork with the first mount of its parent. Each mount starts with an empty state
// directory.
func (b *bench) mount() error {
	parent, _, err := b.base(b.ours)
	if err != nil {
		return err
	}
	flags := []string{"--wait", "git", "--prefetch", "none", "--history", "none"}
	const rounds = 5
	var parents, forks []time.Duration
	var requests [2][]int64
	for i := range rounds {
		fork, err := b.ours.fork(b.ctx, "base", fmt.Sprint("mounted", i))
		if err != nil {
			return err
		}
		took, n, err := b.mounted(fork, flags...)
		if err != nil {
			return err
		}
		forks, requests[1] = append(forks, took), append(requests[1], n)
		if took, n, err = b.mounted(parent, flags...); err != nil {
			return err
		}
		parents, requests[0] = append(parents, took), append(requests[0], n)
	}
	slices.Sort(parents)
	slices.Sort(forks)
	same := slices.Equal(slices.Compact(slices.Sorted(slices.Values(requests[0]))),
		slices.Compact(slices.Sorted(slices.Values(requests[1]))))
	b.table.line("first mount of a new fork, with ls; of the parent", "the same number of requests", same,
		fmt.Sprintf("%s, %d requests; %s, %d requests", seconds(forks[rounds/2]), requests[1][0], seconds(parents[rounds/2]),
			requests[0][0]))
	return nil
}

// atRest measures memory and disk space of many repositories that are not used. Some of them have received a push.
func (b *bench) atRest() error {
	alone, err := startOurs(b.ctx, b.ours.program, b.path("rest"), strings.Fields(b.serve)...)
	if err != nil {
		return err
	}
	defer func() { alone.end() }()
	empty := resident(alone.pid())
	source := b.path("rest-source")
	if _, err := git(b.ctx, "", remote{}, "init", "-q", "-b", "main", source); err != nil {
		return err
	}
	if err := b.commit(source, 0); err != nil {
		return err
	}
	start := time.Now()
	if err := parallel(b.rest, func(i int) error {
		r, err := alone.create(b.ctx, fmt.Sprint("rest", i))
		if err == nil && i < b.pushed {
			_, err = git(b.ctx, source, r, "push", "-q", r.url, "main")
		}
		return err
	}); err != nil {
		return err
	}
	took := time.Since(start)
	busy := resident(alone.pid())
	u, err := diskUsage(alone.dir())
	if err != nil {
		return err
	}
	if err := alone.again(b.ctx); err != nil {
		return err
	}
	rest := resident(alone.pid())
	b.table.line(fmt.Sprintf("%d repositories, %d of them with a push: made in", b.rest, b.pushed), "", true,
		seconds(took))
	b.table.line("memory of the server: without repositories, after making them, started again", "< "+mib(goalRestMemory),
		max(rest, busy) < goalRestMemory,
		fmt.Sprintf("%s, %s, %s", mib(empty), mib(busy), mib(rest)))
	each := (u.bytes - u.objects) / int64(b.rest)
	b.table.line("disk space of each, without its objects", "<= "+kib(goalRestDisk), each <= goalRestDisk, kib(each))
	return nil
}

// parallel calls do with the numbers from 0 to n-1 in four goroutines, and returns the first error.
func parallel(n int, do func(i int) error) error {
	g, ctx := errgroup.WithContext(context.Background())
	g.SetLimit(4)
	for i := range n {
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			return do(i)
		})
	}
	return g.Wait()
}
