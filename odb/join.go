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
	Above int                             // Join does nothing with at most this many promisor packs
	Keep  int                             // number of promisor packs that remain at most
	Pace  func(ctx context.Context) error // called between pieces of work; it may block to slow Join down
	// Reports whether a process detects replaced packs itself, so that Join need not wait for it; nil: none.
	Reader func(pid int) bool
	// Number of packs above which old ones are removed soon, even if processes may be reading them.
	Crowd int
}

// JoinResult is the result of Join.
type JoinResult struct {
	Name    string // name of the new pack; "" if nothing was joined
	Packs   int    // number of joined packs
	Objects int    // number of objects in the new pack
	Bytes   int64  // size of the new pack
	Removed int    // number of removed packs
}

// Join reads only packs with the mark of a promisor remote, and copies their entries unchanged: an OFS delta names its
// base by distance, which stays valid when a whole pack body is copied, and a REF delta by ID. An object in several
// packs is copied once, from the first one. The bodies of later packs are then incomplete: a delta whose distance to its
// base changes, or whose base is the copy from an earlier body, gets a new header in front of its old data. Bases stay
// before their OFS deltas, and no cycle can arise: objects of earlier bodies never refer to later ones.
//
// The new pack is complete, on disk and visible to git before an old one is removed. A git process reads the directory
// once, opens indexes when it first needs them and packs even later. If a file is missing, git reads the directory again
// and finds the new pack, so it misses no object; but commands that list all promised objects (fsck, gc, rev-list) skip
// a missing index. So old packs stay until all git processes have ended that may have read the directory without the new
// pack.
//
// A killed join leaves packs whose objects are all in other packs. The next join recognizes and removes them.

// candidate is an open pack that may be joined.
type candidate struct {
	*pack
	idx  *Index
	size int64 // size of the pack in bytes
}

// Join replaces many promisor packs by few if there are more than o.Above. It does nothing while another process joins
// packs or git runs maintenance. After an error all objects are still in the store.
func (s *Store) Join(ctx context.Context, o JoinOptions) (JoinResult, error) {
	res, err := s.join(ctx, o)
	if err != nil {
		return res, fmt.Errorf("join packs in %s: %w", s.dir, err)
	}
	return res, nil
}

// join does the work of Join. It holds the file lock artifactfs-join.lock.
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
	if names, err = joinable(s.dir); err != nil || len(names) <= o.Above { // another process has just joined them
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
	err = s.Refresh() // readers of this process need not detect the change themselves
	if err == nil {
		res.Removed, err = s.retire(ctx, old, left, res.Name, o)
	}
	return res, errors.Join(err, s.Refresh())
}

// joinable returns the paths, without suffix, of the complete packs in dir that have a promisor mark and neither .keep
// nor .mtimes.
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
		if ok && strings.HasPrefix(base, "pack-") && has[base+".pack"] && has[base+".idx"] && !has[base+".keep"] && !has[base+".mtimes"] {
			paths = append(paths, filepath.Join(dir, base))
		}
	}
	return paths, nil
}

// candidates opens packs and returns them, the largest first. It skips packs that cannot be opened: they were removed or
// are damaged.
func (s *Store) candidates(paths []string) []candidate {
	var packs []candidate
	for _, path := range paths {
		p := &pack{path: path, format: s.format, number: s.serial.Add(1)}
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

// damaged reports whether a pack has made an earlier join fail.
func (s *Store) damaged(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unjoinable[path]
}

// setDamaged excludes a pack from later joins.
func (s *Store) setDamaged(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unjoinable == nil {
		s.unjoinable = map[string]bool{}
	}
	s.unjoinable[path] = true
}

// redundant separates the packs whose objects are all in other packs from the rest. Both lists keep their order.
func redundant(packs []candidate) (old, rest []candidate) {
	for _, c := range packs { // largest first: only a larger pack can contain all objects of another
		if contained(c.idx, rest) {
			old = append(old, c)
		} else {
			rest = append(rest, c)
		}
	}
	return old, rest
}

// contained reports whether every object of x is in one of packs.
func contained(x *Index, packs []candidate) bool {
	for i := range x.n {
		if !slices.ContainsFunc(packs, func(c candidate) bool { _, ok := c.idx.lookup(x.name(i)); return ok }) {
			return false
		}
	}
	return true
}

// choose returns the packs to join, from the end of packs, which has the smallest: as many as necessary to leave o.Keep
// packs, and further ones while they are smaller than twice the sum so far. So a pack is rewritten only when the packs
// to add have at least half its size, and large packs are rewritten rarely.
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

// joinPacks writes one pack with the objects of all packs, which are sorted by size, the largest first.
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
			return res, fmt.Errorf("read %s: %w", filepath.Base(c.path), err)
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
		if at >= 0 { // an entry differed from its CRC in the index
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
	res = JoinResult{Name: fmt.Sprintf("pack-%x", sum), Packs: len(packs), Objects: plan.table.n, Bytes: plan.size + int64(len(sum))}
	err = s.publishJoined(packs, file.Name(), filepath.Join(s.dir, res.Name), plan.table, sum, mark)
	if err != nil {
		res = JoinResult{}
	}
	return res, err
}

// errOvertaken means that another process has removed packs that were being joined.
var errOvertaken = errors.New("packs were replaced meanwhile")

// publishJoined renames the new pack to its final name: first its promisor mark, then the pack, then its index.
func (s *Store) publishJoined(packs []candidate, file, path string, t *table, sum, mark []byte) (err error) {
	for _, c := range packs {
		if !whole(c.path) { // git has repacked: the new pack would be superfluous
			return errOvertaken
		}
	}
	if _, err := os.Lstat(path + ".idx"); err == nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), fs.ErrExist)
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
		defer idx.Close() // keep the file locked until it is renamed
	}
	if err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	m, err := write(func(f *os.File) error { _, err := f.Write(mark); return err })
	if m != nil {
		defer m.Close()
	}
	if err == nil {
		err = os.Rename(m.Name(), path+".promisor")
	}
	if err != nil {
		return fmt.Errorf("write mark: %w", err)
	}
	settle, err := publish(file, idx.Name(), path, true)
	if err != nil {
		return err
	}
	return settle()
}

// whole reports whether a pack exists together with its index and its promisor mark.
func whole(path string) bool {
	for _, suffix := range []string{".pack", ".idx", ".promisor"} {
		if _, err := os.Lstat(path + suffix); err != nil {
			return false
		}
	}
	return true
}

// pace calls o.Pace, and returns an error if ctx has ended.
func (o *JoinOptions) pace(ctx context.Context) error {
	if err := ctx.Err(); err != nil || o.Pace == nil {
		return err
	}
	return o.Pace(ctx)
}

// maxMark is the maximum size in bytes of one pack's promisor mark. Git writes the refs into it for which the pack was
// fetched, and never reads them.
const maxMark = 8 << 20

// joinMarks returns the lines of all promisor marks without duplicates.
func joinMarks(packs []candidate) ([]byte, error) {
	var all []byte
	seen := map[string]bool{}
	for _, c := range packs {
		st, err := os.Stat(c.path + ".promisor")
		if err == nil && st.Size() > maxMark {
			err = corrupt("mark of %d bytes", st.Size())
		}
		var text []byte
		if err == nil {
			text, err = os.ReadFile(c.path + ".promisor")
		}
		if err != nil {
			return nil, fmt.Errorf("read mark: %w", err)
		}
		all = appendLines(all, seen, text)
	}
	return all, nil
}

// appendLines appends the lines of text that are not in seen, and adds them to it.
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
