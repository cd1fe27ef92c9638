package readahead

import "github.com/artifactfs/artifactfs/git/object"

const (
	// leastWhole is the minimum number of missing blobs for which a tree is wanted as a whole. For fewer blobs, a request by id
	// costs the server hardly more.
	leastWhole = 256
	// costOfID is the time that a server needs for a blob that is wanted by its id, in units of the time that it needs for a blob
	// of a tree that is wanted as a whole, times ten. Measured with upload-pack: 1.1 to 1.9. A low value is used,
	// because blobs that are here already cost bytes as well.
	costOfID = 13
)

// Dir is a directory of a tree: the numbers of the blobs below it that are on this host and that are missing.
type Dir struct {
	ID            object.ID
	Path          string // "" is the root
	Here, Missing int
	Wants         []object.ID // missing blobs of the directory without its subdirectories
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

// Choose returns the directories that are to be requested as a whole, the topmost ones, so that a server packs the contents as for
// a clone. The missing blobs outside of these directories are to be requested by their ids. A directory is requested as a whole
// if many of its blobs are missing and nearly none are on this host, because those would be received twice.
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
