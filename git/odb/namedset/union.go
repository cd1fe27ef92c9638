package namedset

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb/named"
)

// ErrPrefixCollision means that the first named.PrefixBits bits of the ids of two named blobs are equal.
var ErrPrefixCollision = errors.New("IDs of two named blobs begin with the same bits")

// Union is the union of the sets of several directories.
type Union []*Dir

// Sync compares the directories with the sets, and adds the packs that other processes have created. It reads packs
// that have no file yet, which takes about as long as receiving them. It calls the watchers before it returns, if a set
// has grown.
func (b Union) Sync(ctx context.Context) error {
	for _, n := range b {
		grown, err := n.sync(ctx)
		if grown {
			n.announce()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Has reports whether a tree names the blob id. It returns false only after it has compared the directories with the
// sets, as Sync does, which costs one stat(2) for each directory if nothing has changed. If it cannot do that, it
// returns an error, for example the error of ctx, and the answer is not known.
func (b Union) Has(ctx context.Context, id object.ID) (bool, error) {
	return b.find(ctx, func(n *Dir) bool { return n.has(id) })
}

// find reports whether the function found returns true for one of the sets. If it returns false for all, find compares
// the directories with the sets (Sync) and calls found again.
func (b Union) find(ctx context.Context, found func(*Dir) bool) (bool, error) {
	if slices.ContainsFunc(b, found) {
		return true, nil
	}
	changed := false
	for _, n := range b {
		before := n.view.Load()
		grown, err := n.sync(ctx)
		if grown {
			n.announceLater()
		}
		if err != nil {
			return false, err
		}
		changed = changed || n.view.Load() != before
	}
	return changed && slices.ContainsFunc(b, found), nil
}

// Prefixed returns the named blob whose id has this prefix (see named.Prefix). It returns false if there is none, in
// the same way as Has, and ErrPrefixCollision if there are two.
func (b Union) Prefixed(ctx context.Context, prefix uint64) (id object.ID, ok bool, err error) {
	var ids []object.ID
	ok, err = b.find(ctx, func(n *Dir) bool {
		for _, s := range n.sets() {
			ids = s.AppendPrefixed(ids, prefix)
		}
		return len(ids) > 0
	})
	if !ok {
		return id, false, err
	}
	// find stops at the first directory for which the function below returns true.
	for _, n := range b {
		for _, s := range n.sets() {
			ids = s.AppendPrefixed(ids, prefix)
		}
	}
	if len(ids) > 1 {
		return id, false, fmt.Errorf("%w: %s and %s", ErrPrefixCollision, ids[0], ids[1])
	}
	return ids[0], true, nil
}

// From returns the named blobs whose ids have the first byte first, in the order of their ids. It starts after the id
// in the parameter after; the zero id stands for the start. From does not compare the directories with the sets, and
// omits blobs that are added while it runs.
func (b Union) From(first byte, after object.ID) iter.Seq[object.ID] {
	return named.From(b.sets(), first, after)
}

// Count returns the number of named blobs. It reads all ids, which takes some milliseconds for 100,000 blobs.
func (b Union) Count() int { return named.Count(b.sets()) }

// sets returns the sets of all packs of all directories.
func (b Union) sets() (all []*named.Set) {
	for _, n := range b {
		all = append(all, n.sets()...)
	}
	return all
}

// Watch registers the function grown, which is called whenever one of the sets has grown, until the returned function
// stop is called. At the time of the call, the set already contains the new blobs. For a pack that Ingest stores,
// Ingest waits until grown has returned, and only then makes the pack visible to git. So grown must not wait for a
// request that itself waits for Ingest. For a pack that another process has stored, grown is called as soon as Sync,
// Has or Prefixed finds the pack; Has and Prefixed do not wait for grown.
func (b Union) Watch(grown func()) (stop func()) {
	w := &watcher{grown}
	for _, n := range b {
		n.mu.Lock()
		if !n.closed {
			n.watchers[w] = true
		}
		n.mu.Unlock()
	}
	return func() {
		for _, n := range b {
			n.mu.Lock()
			delete(n.watchers, w)
			n.mu.Unlock()
		}
	}
}
