package overlay

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/worktree/overlay/state"
)

// The file "shares" in the directory of an overlay lists the shares that the overlay uses, so that others find out
// without the log which shares are needed. A share is listed on disk before the log names it, and a share that the log
// does not name is removed from the list by the next Open.

// listName is the name of the list of shares.
const listName = "shares"

// listWord is the first word of each line of the list. A line with another word is of a later version of the program.
const listWord = "share "

// ListedShares returns the IDs of the shares that the overlay in the directory dir may use. The overlay may be open,
// and need not exist. ListedShares returns an error if the list cannot be read; the overlay may then use any share.
func ListedShares(dir string) ([]string, error) { return listedShares(disk.OS, dir) }

// listedShares does the work of ListedShares in the file system on.
func listedShares(on disk.FS, dir string) (ids []string, err error) {
	f, err := on.OpenFile(filepath.Join(dir, listName), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	text := make([]byte, info.Size())
	if _, err := f.ReadAt(text, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		id, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), listWord)
		if !ok || !state.ValidShare(id) {
			return nil, fmt.Errorf("read list of shares %s: %w: line is %.40q", f.Name(), ErrDamaged, line)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// writeList makes the list of shares of the overlay in the directory dir contain the given IDs and no others.
func writeList(on disk.FS, dir string, ids []string) error {
	if old, err := listedShares(on, dir); err == nil && slices.Equal(old, ids) {
		return nil
	}
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(listWord + id + "\n")
	}
	err := disk.WriteFileOn(on, filepath.Join(dir, listName), []byte(text.String()), 0o600)
	if err == nil {
		err = on.SyncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("list the shares of the overlay: %w", err)
	}
	return nil
}

// sharesOf returns the IDs of the shares of segments, sorted.
func sharesOf(segments []state.Segment) (ids []string) {
	for _, g := range segments {
		ids = append(ids, g.Share)
	}
	slices.Sort(ids)
	return ids
}

// checkList makes the list of shares agree with the log. The list on disk may have more shares than the log if a seal
// has failed, and fewer only if it was damaged. findLost was called before. If all shares of the log are listed, an
// error of the disk is ignored.
func (s *opening) checkList(segments []state.Segment) error {
	want := sharesOf(segments)
	have, err := listedShares(s.l.o.FS, s.l.dir)
	if err == nil && len(have) == 0 && len(want) == 0 {
		return nil
	}
	lacks := err != nil || slices.ContainsFunc(want, func(id string) bool { return !slices.Contains(have, id) })
	if err := writeList(s.l.o.FS, s.l.dir, want); lacks {
		return err
	}
	return nil
}

// findLost finds shares whose files were moved, and that the log does not name although it should (see lostSegments).
// The log was then lost, or damaged so that the end of it seemed to be unwritten after a power cut. findLost returns
// ErrDamaged, or adds a problem if the layer is opened for reading, so that the shares stay in the list, and Check can
// add them to the log. If nothing was ever changed in the overlay, its process died before it had named the shares of
// Options.Segments: findLost names them.
func (s *opening) findLost() error {
	lost, err := lostSegments(s.l.dir, s.l.o, s.l.state.Segments)
	switch ids := strings.Join(sharesOf(lost), ", "); {
	case errors.Is(err, ErrDamaged): // checkList replaces the list
		return nil
	case err != nil, len(lost) == 0:
		return err
	case s.l.o.ReadOnly:
		s.rec.Problems = append(s.rec.Problems, fmt.Sprintf("log does not name share %s", ids))
		return nil
	case s.l.state.Totals().Inodes == 0 && s.l.state.Counter(counterContents) == 0:
		return s.addSegments(lost)
	default:
		return fmt.Errorf("find contents: log does not name share %s: %w", ids, ErrDamaged)
	}
}

// lostSegments returns segments for the shares that the overlay in the directory dir has listed, and that a lost or
// damaged log does not name any more although their files were moved, sorted by Bound. The bound of a segment follows
// from the numbers of the files in the share. The log has lost a segment only together with all later ones, so a share
// with lower numbers than the segments in the parameter known was removed from the log on purpose. So was a share
// without files, unless it is the last one, whose files Reclaim may have removed.
func lostSegments(dir string, o Options, known []state.Segment) (lost []state.Segment, err error) {
	ids, err := listedShares(o.FS, dir)
	if err != nil || o.Shares == "" {
		return nil, err
	}
	low := uint64(0)
	for _, g := range known {
		low = max(low, g.Bound)
	}
	last := "" // share of the last segment, if it has no files
	for _, id := range ids {
		if slices.ContainsFunc(known, func(g state.Segment) bool { return g.Share == id }) {
			continue
		}
		highest, isLast, err := filesOf(dir, o, id)
		switch {
		case err != nil:
			return nil, err
		case highest > 0 && highest >= low:
			lost = append(lost, state.Segment{Share: id, Bound: (highest/perDirectory + 1) * perDirectory})
		case highest == 0 && isLast:
			last = id
		}
	}
	slices.SortFunc(lost, func(a, b state.Segment) int { return cmp.Compare(a.Bound, b.Bound) })
	if last != "" { // its own bound is not lower than this one
		if len(lost) > 0 {
			low = lost[len(lost)-1].Bound
		}
		lost = append(lost, state.Segment{Share: last, Bound: low + perDirectory})
	}
	return lost, nil
}

// filesOf returns the highest number of the files in a share, or 0 if it has none. last reports whether files were
// moved to the share, and the directory for new files, which has the ID of the last segment, is the one with this ID.
func filesOf(dir string, o Options, id string) (highest uint64, last bool, err error) {
	c := contents{fs: o.FS, overlay: dir}
	moved := filepath.Join(o.Shares, id, "contents")
	c.layout.Store(&layout{own: moved})
	err = c.each(0, func(number uint64) error { highest = max(highest, number); return nil })
	if err == nil {
		last, err = exists(o.FS, moved, c.ownDir(id))
	}
	return highest, last, err
}

// exists reports whether all paths exist.
func exists(on disk.FS, paths ...string) (bool, error) {
	for _, path := range paths {
		if _, err := on.Stat(path); err != nil {
			return false, ignoreMissing(err)
		}
	}
	return true, nil
}

// droppedSegments returns the IDs of those of the segments in known that a lost or damaged log has dropped after its
// last readable record (see reclaiming.drop): their shares are not listed, their files do not exist, and there is a
// later segment, in known or among the segments that the log has lost.
func droppedSegments(dir string, o Options, known, lost []state.Segment) (ids []string, err error) {
	listed, err := listedShares(o.FS, dir)
	if err != nil {
		return nil, err
	}
	c := contents{fs: o.FS, overlay: dir, shares: o.Shares}
	c.setSegments(known)
	for i, s := range c.layout.Load().segments {
		if slices.Contains(listed, known[i].Share) || i == len(known)-1 && len(lost) == 0 {
			continue
		}
		moved, err1 := exists(o.FS, s.dirs[0])
		former, err2 := exists(o.FS, s.dirs[1])
		if err := cmp.Or(err1, err2); err != nil {
			return nil, err
		}
		if !moved && !former {
			ids = append(ids, known[i].Share)
		}
	}
	return ids, nil
}
