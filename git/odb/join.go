package odb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// JoinOptions configures Join.
type JoinOptions struct {
	Above int                             // Join does nothing unless there are more promisor packs than this number
	Keep  int                             // maximum number of promisor packs after Join
	Pace  func(ctx context.Context) error // called between pieces of work; it may block to slow Join down
	// Reader reports whether the process pid detects by itself that packs were replaced, so that Join need not wait until
	// this process has ended. If Reader is nil, Join waits for every process that may read packs.
	Reader func(pid int) bool
	// Crowd is a number of packs. If there are more packs, Join waits only for a short time before it removes the old
	// packs, even if processes may be reading the old packs.
	Crowd int
}

// JoinResult describes what Join has done.
type JoinResult struct {
	Name    string // name of the new pack; "" if nothing was joined
	Packs   int    // number of joined packs
	Objects int    // number of objects in the new pack
	Bytes   int64  // size of the new pack
	Removed int    // number of removed packs
}

// Join reads only packs that have the mark of a promisor remote, and copies their entries unchanged. A REF delta names
// its base by id. An OFS delta names its base by its distance in the pack, which stays the same if the whole body of a
// pack is copied. If several packs contain an object, only the first copy is taken, so the bodies of later packs are
// copied in parts. A delta gets a new header before its old data if the distance to its base changes, or if its base is
// the copy from an earlier body. Bases still precede their OFS deltas. No cycle can arise, because objects of an
// earlier body never refer to a later body.
//
// The new pack is complete, on disk and visible to git before an old pack is removed. A git process lists the directory
// once, opens an index when the process first needs it, and opens the pack even later. If a file is missing, git lists
// the directory again and finds the new pack, so no object is missing for git. But commands that list all promised
// objects (fsck, gc, rev-list) skip a missing index. So an old pack is kept until all git processes have ended that may
// have listed the directory before the new pack existed.
//
// If Join is killed, it may leave packs whose objects are all in other packs. The next Join finds and removes them.

// candidate is a pack that may be joined. Its files are open.
type candidate struct {
	*pack
	idx  *Index
	size int64 // size of the pack in bytes
}

// Join replaces many promisor packs by few, if their number is greater than o.Above. It does nothing while another
// process joins packs or git runs maintenance. No object is lost, even if Join returns an error.
func (s *Store) Join(ctx context.Context, o JoinOptions) (JoinResult, error) {
	res, err := s.join(ctx, o)
	if err != nil {
		return res, fmt.Errorf("join packs in %s: %w", s.dir, err)
	}
	return res, nil
}

// join does the work of Join. While it runs, it holds the file lock artifactfs-join.lock.
func (s *Store) join(ctx context.Context, o JoinOptions) (res JoinResult, err error) {
	names, err := joinable(s.dir)
	if err != nil || len(names) <= o.Above {
		return res, err
	}
	info := filepath.Join(filepath.Dir(s.dir), "info")
	if err := os.MkdirAll(info, 0o755); err != nil {
		return res, err
	}
	unlock, err := disk.TryLock(filepath.Join(info, "artifactfs-join.lock"))
	if errors.Is(err, disk.ErrLocked) {
		return res, nil
	}
	if err != nil {
		return res, err
	}
	defer unlock()
	if tidying(filepath.Dir(s.dir), time.Now()) {
		return res, nil
	}
	// Another process may have joined the packs while this process waited for the lock, so list the packs again.
	if names, err = joinable(s.dir); err != nil || len(names) <= o.Above {
		return res, err
	}
	if err := removeOrphans(s.dir, time.Now()); err != nil {
		return res, err
	}
	packs := s.candidates(names)
	defer func() {
		for _, c := range packs {
			c.close()
		}
	}()
	old, rest := redundant(packs)
	left := rest
	if chosen := choose(rest, o); len(chosen) > 1 {
		joined, err := s.joinPacks(ctx, chosen, o)
		if err != nil {
			return res, err
		}
		res = joined
		old, left = append(old, chosen...), rest[:len(rest)-len(chosen)]
	}
	if len(old) == 0 {
		return res, nil
	}
	err = s.Refresh() // after this call, readers in this process find the objects in the new pack
	if err == nil {
		res.Removed, err = s.retire(ctx, old, left, res.Name, o)
	}
	return res, errors.Join(err, s.Refresh())
}

// joinable returns the paths, without suffix, of the packs in dir that may be joined: they are complete, have a
// promisor mark, and have neither a .keep nor a .mtimes file.
func joinable(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	has := make(map[string]bool, len(entries))
	for _, e := range entries {
		has[e.Name()] = true
	}
	var paths []string
	for name := range has {
		base, ok := strings.CutSuffix(name, ".promisor")
		if ok && strings.HasPrefix(base, "pack-") && has[base+".pack"] && has[base+".idx"] && !has[base+".keep"] &&
			!has[base+".mtimes"] {
			paths = append(paths, filepath.Join(dir, base))
		}
	}
	return paths, nil
}

// candidates opens the packs at paths and returns them, sorted by size, the largest first. It skips packs that are
// damaged or were removed.
func (s *Store) candidates(paths []string) []candidate {
	var packs []candidate
	for _, path := range paths {
		p := &pack{path: path, format: s.format, number: s.serial.Add(1), foreign: s.foreign}
		if s.damaged(path) || p.open() != nil {
			continue
		}
		f := p.files.Load()
		packs = append(packs, candidate{p, f.idx, f.end})
	}
	slices.SortFunc(packs, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.size, a.size), strings.Compare(a.path, b.path))
	})
	return packs
}

// damaged reports whether an earlier join has failed because of damage in the pack.
func (s *Store) damaged(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unjoinable[path]
}

// setDamaged records that a pack is damaged, so that later joins skip it.
func (s *Store) setDamaged(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unjoinable == nil {
		s.unjoinable = map[string]bool{}
	}
	s.unjoinable[path] = true
}

// redundant splits packs into two lists: old contains the packs whose objects are all in other packs, and rest contains
// the others. Both lists keep the order of packs.
func redundant(packs []candidate) (old, rest []candidate) {
	// the largest packs come first, because a larger pack is more likely to contain all objects of c
	for _, c := range packs {
		if contained(c.idx, rest) {
			old = append(old, c)
		} else {
			rest = append(rest, c)
		}
	}
	return old, rest
}

// contained reports whether every object in x is also in one of packs.
func contained(x *Index, packs []candidate) bool {
	for i := range x.n {
		if !slices.ContainsFunc(packs, func(c candidate) bool { _, ok := c.idx.lookup(x.name(i)); return ok }) {
			return false
		}
	}
	return true
}

// choose returns the packs to join, which are the smallest ones. The slice packs is sorted by size, with the smallest
// packs at its end. choose takes as many packs as necessary to leave o.Keep packs, and then further packs as long as
// the next one is smaller than twice the sum of the packs taken before. So a pack is rewritten only if the packs that
// are joined with it have at least half its size, and a large pack is rewritten rarely.
func choose(packs []candidate, o JoinOptions) []candidate {
	if len(packs) <= o.Above {
		return nil
	}
	first := min(o.Keep-1, len(packs)-2)
	sum := int64(0)
	for _, c := range packs[first:] {
		sum += c.size
	}
	for first > 0 && packs[first-1].size < 2*sum {
		first--
		sum += packs[first].size
	}
	return packs[first:]
}

// joinPacks writes one pack with the objects of all packs, which are sorted by size, the largest first. It does not
// remove the old packs.
func (s *Store) joinPacks(ctx context.Context, packs []candidate, o JoinOptions) (res JoinResult, err error) {
	mark, err := joinMarks(packs)
	if err != nil {
		return res, err
	}
	plan := &joinPlan{format: s.format, table: newTable(s.format), size: packHeaderSize}
	for _, c := range packs {
		if err := o.pace(ctx); err != nil {
			return res, err
		}
		if err := plan.add(c); err != nil {
			if errors.Is(err, ErrCorrupt) {
				s.setDamaged(c.path)
			}
			return res, fmt.Errorf("read pack %s: %w", filepath.Base(c.path), err)
		}
	}
	file, err := lockedTemp(s.dir)
	if err != nil {
		return res, err
	}
	defer func() {
		file.Close()
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	w := joinWriter{plan: plan, file: file, pace: func() error { return o.pace(ctx) }}
	if err := w.copy(); err != nil {
		return res, err
	}
	sum, at, err := w.check()
	if err != nil {
		if at >= 0 { // the CRC of the entry at this offset differs from the CRC in its index
			s.setDamaged(plan.sourceOf(at))
		}
		return res, err
	}
	if err := s.checkRewritten(plan, file); err != nil {
		return res, err
	}
	if err := errors.Join(file.Chmod(0o444), file.Sync()); err != nil {
		return res, err
	}
	res = JoinResult{Name: fmt.Sprintf("pack-%x", sum), Packs: len(packs), Objects: plan.table.n,
		Bytes: plan.size + int64(len(sum))}
	err = s.publishJoined(packs, file.Name(), filepath.Join(s.dir, res.Name), plan.table, sum, mark)
	if err != nil {
		res = JoinResult{}
	}
	return res, err
}

// errOvertaken means that another process has removed packs while this process was joining them.
var errOvertaken = errors.New("another process has replaced the packs")

// publishJoined writes the index and the promisor mark of the new pack, and renames the files to their final names:
// first the mark, then the pack, then the index.
func (s *Store) publishJoined(packs []candidate, file, path string, t *table, sum, mark []byte) (err error) {
	for _, c := range packs {
		if !whole(c.path) { // git has repacked the objects, so the new pack is not needed
			return errOvertaken
		}
	}
	if _, err := os.Lstat(path + ".idx"); err == nil {
		return fmt.Errorf("create pack %s: %w", filepath.Base(path), fs.ErrExist)
	}
	var temps []string
	defer func() {
		for _, name := range temps {
			os.Remove(name)
		}
	}()
	write := func(fill func(f *os.File) error) (*os.File, error) {
		f, err := lockedTemp(s.dir)
		if err != nil {
			return nil, err
		}
		temps = append(temps, f.Name())
		return f, errors.Join(fill(f), f.Chmod(0o444), f.Sync())
	}
	idx, err := write(func(f *os.File) error { return writeIndex(f, s.format, t, sum) })
	if idx != nil {
		defer idx.Close() // the lock on the file is held until the file was renamed
	}
	if err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	if err := joinNames(packs, path, s.format); err != nil {
		return fmt.Errorf("write named blobs: %w", err)
	}
	m, err := write(func(f *os.File) error { _, err := f.Write(mark); return err })
	if m != nil {
		defer m.Close()
	}
	if err == nil {
		err = os.Rename(m.Name(), path+".promisor")
	}
	if err != nil {
		return fmt.Errorf("write promisor mark: %w", err)
	}
	settle, err := publish(file, idx.Name(), path, true)
	if err != nil {
		return err
	}
	return settle()
}

// whole reports whether the files of the pack at path exist: the pack itself, its index and its promisor mark.
func whole(path string) bool {
	for _, suffix := range []string{".pack", ".idx", ".promisor"} {
		if _, err := os.Lstat(path + suffix); err != nil {
			return false
		}
	}
	return true
}

// pace returns an error if ctx has ended. Otherwise it calls o.Pace, unless that is nil.
func (o *JoinOptions) pace(ctx context.Context) error {
	if err := ctx.Err(); err != nil || o.Pace == nil {
		return err
	}
	return o.Pace(ctx)
}

// maxMark is the maximum size in bytes of one pack's promisor mark. git writes the refs for which the pack was fetched
// into this file, and does not read the lines again.
const maxMark = 8 << 20

// joinMarks returns the lines of the promisor marks of all packs, without duplicates.
func joinMarks(packs []candidate) ([]byte, error) {
	var all []byte
	seen := map[string]bool{}
	for _, c := range packs {
		st, err := os.Stat(c.path + ".promisor")
		if err == nil && st.Size() > maxMark {
			err = corrupt("promisor mark is too large: %d bytes", st.Size())
		}
		var text []byte
		if err == nil {
			text, err = disk.ReadRegular(c.path+".promisor", maxMark)
		}
		if err != nil {
			return nil, fmt.Errorf("read promisor mark: %w", err)
		}
		all = appendLines(all, seen, text)
	}
	return all, nil
}

// appendLines returns the slice all with those lines of text appended that are not in the set seen. It also adds these
// lines to seen.
func appendLines(all []byte, seen map[string]bool, text []byte) []byte {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line != "" && !seen[line] {
			seen[line] = true
			all = append(append(all, line...), '\n')
		}
	}
	return all
}
