package upkeep

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/server/records"
)

// collectAll collects the garbage of repositories that have changed.
func (w *Worker) collectAll(ctx context.Context) error {
	ids, err := w.o.Records.Repos.Unswept(ctx, w.now().Add(-w.o.Check), batch)
	if err != nil {
		return err
	}
	return w.each(ctx, "collect garbage of", ids, w.collect)
}

// collect moves the objects of a repository that no ref reaches to a pack of garbage, and removes objects that have
// been garbage for the grace period.
func (w *Worker) collect(ctx context.Context, id string) error {
	now := w.now()
	err := w.expire(ctx, id) // the values of removed entries are garbage
	if err == nil {
		err = w.collectAt(ctx, id, now)
	}
	if ctx.Err() != nil || errors.Is(err, records.ErrChanged) {
		return err
	}
	// The search is recorded even if it has failed, so that the next attempt waits for the interval. The recorded time is
	// a little before the search, because clocks of nodes may differ, so a change during the search is found by the next
	// one.
	return errors.Join(err, w.o.Records.Repos.Swept(ctx, id, now.Add(-time.Minute)))
}

// collectAt collects garbage. Objects that were not garbage before get the time now.
func (w *Worker) collectAt(ctx context.Context, id string, now time.Time) error {
	v, err := w.view(ctx, id)
	if err != nil {
		return err
	}
	defer v.release()
	if v.snap.Repo.BaseURL != "" || len(v.own) == 0 { // git cannot follow refs to objects that a thin repository lacks
		return nil
	}
	scratch, err := w.o.Replicas.Scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	return w.collectView(ctx, v, scratch, now)
}

// collectView collects the garbage of a repository.
func (w *Worker) collectView(ctx context.Context, v *view, scratch string, now time.Time) error {
	reached := filepath.Join(scratch, "reached")
	packs, err := w.contents(ctx, v, scratch)
	if err != nil {
		return err
	}
	if err := w.reach(ctx, v, packs, reached); err != nil {
		return err
	}
	p := w.plan(packs, now)
	if len(p.rewritten) == 0 {
		return nil
	}
	var made []records.Pack
	if made, err = w.rewrite(ctx, v, p, scratch, reached); err != nil {
		return err
	}
	var old []string
	for _, c := range p.rewritten {
		old = append(old, c.pack.ID)
	}
	if len(p.dropped) == 0 {
		return w.o.Records.Packs.Replace(ctx, v.snap.Repo.ID, old, made)
	}
	return w.commit(ctx, v, p, old, made)
}

// contents contains the objects of a pack.
type contents struct {
	pack    records.Pack
	ids     []object.ID // ids of the objects in the order of the index
	since   []time.Time // times since which the objects are garbage; nil if this is not a pack of garbage
	reached []bool      // whether a ref reaches the object
}

// contents reads the lists of objects of the packs that only this repository lists.
func (w *Worker) contents(ctx context.Context, v *view, scratch string) (packs []*contents, err error) {
	for _, p := range v.own {
		x, err := readIndex(v.pack(p.Hash), v.format)
		if err != nil {
			return nil, err
		}
		c := &contents{pack: p, reached: make([]bool, x.Len())}
		for i := range x.Len() {
			id, err := x.ID(i)
			if err != nil {
				return nil, err
			}
			c.ids = append(c.ids, id)
		}
		if isGarbage(p) {
			path := filepath.Join(scratch, p.ID+records.GarbageExtension)
			if err := w.o.Objects.Get(ctx, p.Key(records.GarbageExtension), path); err != nil {
				return nil, err
			}
			data, err := os.ReadFile(path)
			if err == nil {
				c.since, err = parseTimes(data, v.format, x.Len())
			}
			if err != nil {
				return nil, err
			}
		}
		packs = append(packs, c)
	}
	return packs, nil
}

// reach marks the objects that refs reach, and writes them to a file in the order of git, with their paths.
func (w *Worker) reach(ctx context.Context, v *view, packs []*contents, file string) error {
	type place struct {
		c *contents
		i int
	}
	places := map[object.ID][]place{}
	for _, c := range packs {
		for i, id := range c.ids {
			places[id] = append(places[id], place{c, i})
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	out := bufio.NewWriter(f)
	err = w.walk(ctx, v, tips("", v.snap.Refs), func(id object.ID, line string) error {
		for _, p := range places[id] {
			p.c.reached[p.i] = true
		}
		_, err := out.WriteString(line + "\n")
		return err
	})
	return errors.Join(err, out.Flush())
}

// tips returns lines with the ids of refs for git rev-list. The prefix "^" excludes the objects that the refs reach.
func tips(prefix string, refs []records.Ref) string {
	var lines strings.Builder
	for _, r := range refs {
		lines.WriteString(prefix + r.ID + "\n")
	}
	return lines.String()
}

// walk calls the function visit with each object that git rev-list finds from the revisions in stdin. line has the id
// and the path of the object.
func (w *Worker) walk(ctx context.Context, v *view, stdin string, visit func(id object.ID, line string) error) error {
	cmd := w.o.Replicas.Git().In(v.on.Dir).Command(ctx, "rev-list", "--objects", "--stdin")
	cmd.Stdin = strings.NewReader(stdin)
	return gitcmd.Stream(cmd, func(out io.Reader) error {
		for r := bufio.NewReaderSize(out, 64<<10); ; {
			line, err := r.ReadString('\n')
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			line = strings.TrimSuffix(line, "\n")
			text, _, _ := strings.Cut(line, " ")
			id, err := object.ParseIDOf(v.format, text)
			if err == nil {
				err = visit(id, line)
			}
			if err != nil {
				return err
			}
		}
	})
}

// plan describes the changes that a collection makes.
type plan struct {
	rewritten []*contents
	live      map[object.ID]bool      // reached objects of rewritten packs
	garbage   map[object.ID]time.Time // objects to keep in a pack of garbage, with the time since when they are garbage
	dropped   map[object.ID]bool      // objects of rewritten packs that no new pack contains
}

// small is a size in bytes. A pack up to this size is rewritten if it contains any garbage; of a larger pack, at least
// 1/fraction must be garbage.
const (
	small    = 16 << 20
	fraction = 20
)

// plan decides which packs are rewritten. It selects none if there is nothing to do. An object of a rewritten pack is
// kept even if another pack has it too: another node, whose collection began earlier, may be about to replace that
// pack, and when the new packs are made visible only the rewritten ones are checked.
func (w *Worker) plan(packs []*contents, now time.Time) plan {
	p := plan{live: map[object.ID]bool{}, garbage: map[object.ID]time.Time{}, dropped: map[object.ID]bool{}}
	var old []*contents
	due := false // an object becomes garbage, or has been garbage for the grace period
	for _, c := range packs {
		unreached := 0
		for i := range c.ids {
			if !c.reached[i] {
				unreached++
				due = due || c.since != nil && !now.Before(c.since[i].Add(w.o.Grace))
			}
		}
		switch {
		case c.since != nil:
			old = append(old, c)
		case unreached > 0 && (c.pack.Bytes <= small || unreached >= len(c.ids)/fraction):
			p.rewritten = append(p.rewritten, c)
		}
	}
	if !due && len(p.rewritten) == 0 {
		return plan{}
	}
	p.rewritten = append(p.rewritten, old...) // all packs of garbage are rewritten, so that a repository has one at most
	for _, c := range p.rewritten {
		for i, id := range c.ids {
			since := now
			if c.since != nil {
				since = c.since[i]
			}
			if c.reached[i] {
				p.live[id] = true
			} else if first, ok := p.garbage[id]; !ok || since.Before(first) {
				p.garbage[id] = since
			}
		}
	}
	for id, since := range p.garbage {
		if !now.Before(since.Add(w.o.Grace)) {
			p.dropped[id] = true
			delete(p.garbage, id)
		}
	}
	return p
}

// rewrite makes and stores the packs that replace the rewritten ones.
func (w *Worker) rewrite(ctx context.Context, v *view, p plan,
	scratch, reached string) (made []records.Pack, err error) {
	if len(p.live) > 0 {
		list, err := filter(reached, v.format, p.live)
		if err != nil {
			return nil, err
		}
		made, err = w.add(ctx, v, scratch, list, nil, made)
		if err != nil {
			return nil, err
		}
	}
	if len(p.garbage) > 0 {
		list := object.Lines(slices.SortedFunc(maps.Keys(p.garbage), object.ID.Compare))
		made, err = w.add(ctx, v, scratch, list, p.garbage, made)
	}
	return made, err
}

// filter returns the lines of a list of objects whose ids are in a set.
func filter(file string, format object.Format, set map[object.ID]bool) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var list strings.Builder
	n := 0
	r := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := r.ReadString('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
		text, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		id, err := object.ParseIDOf(format, text)
		if err != nil {
			return "", err
		}
		if set[id] {
			n++
			list.WriteString(line)
		}
	}
	if n != len(set) {
		return "", fmt.Errorf("git rev-list: %d objects were found twice or not at all", len(set)-n)
	}
	return list.String(), nil
}

// add makes a pack with the objects in the text list, stores it, and appends it to made. The argument since contains
// the times of a pack of garbage.
func (w *Worker) add(ctx context.Context, v *view, scratch, list string, since map[object.ID]time.Time,
	made []records.Pack) ([]records.Pack, error) {
	hash, err := w.pack(ctx, v, scratch, list)
	if err != nil {
		return nil, err
	}
	base := filepath.Join(scratch, "pack-"+hash)
	x, err := readIndex(base, v.format)
	if err != nil {
		return nil, err
	}
	if n := strings.Count(list, "\n"); x.Len() != n {
		return nil, fmt.Errorf("git pack-objects made a pack with %d objects instead of %d", x.Len(), n)
	}
	if since != nil {
		data, err := encodeTimes(x, v.format, hash, since)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(base+records.GarbageExtension, data, 0o400); err != nil {
			return nil, err
		}
	}
	pack, err := w.o.Replicas.Store(ctx, scratch, hash)
	return append(made, pack), err
}

// commits is the maximum number of attempts to commit a collection while pushes are made.
const commits = 20

// commit makes the result of a collection visible. If refs have changed in the meantime, it first checks that the new
// values do not reach an object that would be removed.
func (w *Worker) commit(ctx context.Context, v *view, p plan, old []string, made []records.Pack) error {
	before, version := v.snap.Refs, v.snap.Repo.Version
	for range commits {
		err := w.o.Records.Packs.Collect(ctx, v.snap.Repo.ID, version, old, made)
		if !errors.Is(err, records.ErrChanged) {
			return err
		}
		now, err := w.view(ctx, v.snap.Repo.ID)
		if err != nil {
			return err
		}
		needed := false
		err = w.walk(ctx, now, tips("", now.snap.Refs)+tips("^", before), func(id object.ID, _ string) error {
			needed = needed || p.dropped[id]
			return nil
		})
		before, version = now.snap.Refs, now.snap.Repo.Version
		now.release()
		if err != nil {
			return err
		}
		if needed {
			return records.ErrChanged // the next collection finds that the objects are not garbage any more
		}
	}
	return records.ErrChanged
}
