package state

import (
	"cmp"
	"slices"
)

// Segment is a range of contents files that are sealed, which means that they do not change any more: those whose
// numbers are below Bound, and not below the Bound of another segment with a lower one.
type Segment struct {
	Share string // ID of the directory to which the contents files belong (see ValidShare)
	Bound uint64
}

// shareLength is the length of the ID of a share in bytes.
const shareLength = 26

// ValidShare reports whether id can be the ID of a share: the text of a ULID, which is a clean name of a file.
func ValidShare(id string) bool {
	return len(id) == shareLength && !slices.ContainsFunc([]byte(id), func(c byte) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z')
	})
}

// withSegment adds a segment to a list that is sorted by Bound and Share, or replaces the one with the same share.
func withSegment(list []Segment, g Segment) []Segment {
	list = slices.DeleteFunc(list, func(old Segment) bool { return old.Share == g.Share })
	i, _ := slices.BinarySearchFunc(list, g, func(a, b Segment) int {
		return cmp.Or(cmp.Compare(a.Bound, b.Bound), cmp.Compare(a.Share, b.Share))
	})
	return slices.Insert(list, i, g)
}

// Seal adds a segment, or replaces the one with the same share.
func (b *Batch) Seal(g Segment) {
	b.begin(putSealed)
	b.string(g.Share)
	b.uint(g.Bound)
	if !ValidShare(g.Share) || g.Bound == 0 {
		b.fail("invalid segment %+v", g)
	}
}

// Unseal removes the segment with the given share. Its numbers then belong to the next segment.
func (b *Batch) Unseal(share string) {
	b.begin(putUnsealed)
	b.string(share)
	if !ValidShare(share) {
		b.fail("invalid share %q", share)
	}
}
