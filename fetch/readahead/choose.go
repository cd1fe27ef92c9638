package readahead

import "github.com/artifactfs/artifactfs/git/object"

const (
	// leastWhole is the minimum number of missing blobs for which a tree is wanted as a whole. For fewer blobs, a request
	// by id costs the server hardly more.
	leastWhole = 256
	// costOfID is ten times the ratio of two costs for a server: of a blob that is wanted by its id, and of a blob that
	// is sent because its tree is wanted as a whole. Measured with upload-pack, the ratio is 1.1 to 1.9. A low value is
	// used, because a request for a whole tree also sends the blobs that are on this host already.
	costOfID = 13
)

// Dir is a directory of a tree, with the numbers of the blobs below it that are on this host and that are missing.
type Dir struct {
	ID            object.ID
	Path          string // path of the directory; "" is the root
	Here, Missing int
	Wants         []object.ID // missing blobs directly in the directory
	Subs          []*Dir
}

// Cover adds the missing blobs of the directory and its subdirectories to ids.
func (d *Dir) Cover(ids map[object.ID]struct{}) {
	for _, id := range d.Wants {
		ids[id] = struct{}{}
	}
	for _, sub := range d.Subs {
		sub.Cover(ids)
	}
}

// Choose returns the topmost directories that should be requested as a whole, so that a server packs their contents as
// for a clone. The missing blobs outside of these directories should be requested by their ids. A directory is
// requested as a whole if many of its blobs are missing and nearly none are on this host, because those would be sent a
// second time.
func Choose(root *Dir) (whole []*Dir) {
	if root.Missing < leastWhole {
		return nil
	}
	if 10*(root.Here+root.Missing) <= costOfID*root.Missing {
		return []*Dir{root}
	}
	for _, d := range root.Subs {
		whole = append(whole, Choose(d)...)
	}
	return whole
}
