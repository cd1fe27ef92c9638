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

// JoinOptions say when and how Join works.
type JoinOptions struct {
	Above  int                             // no fewer promisor packs than these and one more are joined
	Keep   int                             // promisor packs that are left at most
	Pace   func(ctx context.Context) error // asked between pieces of work; it may wait
	Reader func(pid int) bool              // processes that notice by themselves that packs were replaced; nil: none
	Crowd  int                             // with more packs than these old ones go soon, whoever may be reading them
}

// JoinResult is what Join has done.
type JoinResult struct {
	Name    string // of the new pack; "" if there was nothing to join
	Packs   int    // that were joined
	Objects int    // in the new pack
	Bytes   int64  // of the new pack
	Removed int    // packs that went
}

// Joining touches only packs that carry the mark of a promisor remote, and copies their entries as they are: an OFS
// delta names its base by distance, which holds wherever a body is copied to as a whole, a REF delta by id. What is
// in several packs is kept once, where it comes first. Then the bodies behind are no longer whole, and a delta whose
// distance to its base changes, or whose base is the copy in an earlier body, gets a new header in front of
// its old data. Bases stay before their OFS deltas, and no circle can arise: the objects of the first bodies never
// refer to later ones.
//
// The new pack is complete, on disk and found by git before an old one goes. A git process reads the directory once,
// opens indexes when it first needs them and packs later still. What it finds gone it looks for once more in a fresh
// list, so it misses nothing; but commands that list all promised objects (fsck, gc, rev-list) skip an index that is
// gone. So old packs stay until the git processes that may have seen the directory without the new one are gone.
//
// A join that was killed leaves packs all of whose objects are elsewhere. The next one finds them by that.

// candidate is a pack that may be joined.
type candidate struct {
	*pack
	idx  *Index
	size int64 // of the pack in bytes
}

// Join makes few packs of many if there are many. It does nothing while another process joins or git tidies up. An
// error leaves all objects where they were.
func (s *Store) Join(ctx context.Context, o JoinOptions) (JoinResult, error) {
	res, err := s.join(ctx, o)
	if err != nil {
		return res, fmt.Errorf("join packs in %s: %w", s.dir, err)
	}
	return res, nil
}

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
	if names, err = joinable(s.dir); err != nil || len(names) <= o.Above { // somebody else has just done it
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
	err = s.Refresh() // our own readers need not notice by themselves
	if err == nil {
		res.Removed, err = s.retire(ctx, old, left, res.Name, o)
	}
	return res, errors.Join(err, s.Refresh())
}

// joinable lists the finished packs that carry the promisor mark and that nobody wants to keep as they are, by their
// paths without suffix.
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

// candidates opens packs, the largest first. What cannot be opened is gone, or no business of ours.
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

// damaged reports whether a pack has already made a join fail.
func (s *Store) damaged(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unjoinable[path]
}

func (s *Store) setDamaged(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unjoinable == nil {
		s.unjoinable = map[string]bool{}
	}
	s.unjoinable[path] = true
}

// redundant parts packs into those all of whose objects are in others, and the rest. Both keep their order.
func redundant(packs []candidate) (old, rest []candidate) {
	for _, c := range packs { // the largest first: only they can hold all of another
		if contained(c.idx, rest) {
			old = append(old, c)
		} else {
			rest = append(rest, c)
		}
	}
	return old, rest
}

// contained says whether each object of x is in one of packs.
func contained(x *Index, packs []candidate) bool {
	for i := range x.n {
		if !slices.ContainsFunc(packs, func(c candidate) bool { _, ok := c.idx.lookup(x.name(i)); return ok }) {
			return false
		}
	}
	return true
}

// choose takes the packs to join from the end of packs, the smallest: as many as leave o.Keep, and further ones as long
// as they are less than twice of what they are joined with. So a pack is rewritten only when there is half as much to
// add, and large ones hardly ever.
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

// joinPacks writes one pack of the objects of all packs, which are in the order of their sizes, the largest first.
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
		if at >= 0 { // an entry was not what its index says
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

// errOvertaken means that somebody else has removed what was to be joined.
var errOvertaken = errors.New("packs were replaced meanwhile")

// publishJoined returns the new pack its name, with its mark before it and its index behind.
func (s *Store) publishJoined(packs []candidate, file, path string, t *table, sum, mark []byte) (err error) {
	for _, c := range packs {
		if !whole(c.path) { // git has repacked: our copy would be one too many
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
		defer idx.Close() // it is locked until it has its name
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

// whole reports whether a pack with its index and mark is there.
func whole(path string) bool {
	for _, suffix := range []string{".pack", ".idx", ".promisor"} {
		if _, err := os.Lstat(path + suffix); err != nil {
			return false
		}
	}
	return true
}

func (o *JoinOptions) pace(ctx context.Context) error {
	if err := ctx.Err(); err != nil || o.Pace == nil {
		return err
	}
	return o.Pace(ctx)
}

// maxMark is what the mark of one pack may be long, in bytes. Git lists the refs in it that a pack was fetched for, and
// reads it never.
const maxMark = 8 << 20

// joinMarks returns the lines of all marks, each once.
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

// appendLines appends the lines of text that are not seen yet.
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
