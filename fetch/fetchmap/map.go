// Package fetchmap shows where in the tree of a mount the contents are on this host, and where requests go: a Survey counts files,
// fetched files and requests by directory, and returns the largest directories as a Map, whose size is limited.
//
// A Survey exists only while a client follows a mount. It asks for each missing blob whether it has arrived, and paces itself: the caller
// waits after each Update for a multiple of the time that it took (Pace).
//
// Locks: Survey.mu is a leaf. It is not held while the tree is read.
package fetchmap

import (
	"cmp"
	"container/heap"
	"slices"
)

// Limits of a Map. They keep a message small, and a page readable.
const (
	DefaultBoxes = 150
	MaxBoxes     = 600
	maxChildren  = 40   // directories of one directory
	leastShare   = 1000 // a directory with less than this part of the whole is not shown alone
)

// MapRequest selects what a Map shows.
type MapRequest struct {
	Path  string `json:"path,omitempty"`  // directory to show, relative to the mount; "": the root
	Bytes bool   `json:"bytes,omitempty"` // select directories by bytes; false: by files
	Boxes int    `json:"boxes,omitempty"` // maximum number of directories in the map; 0: 150
}

// Map is the state of a tree, and what happened in it since the message before.
type Map struct {
	Seconds   float64 `json:"seconds"`    // time since the message before, in seconds
	Requests  int64   `json:"requests"`   // requests of the kernel in this time
	Waited    int64   `json:"waited"`     // those that had to wait for the remote
	Reads     int64   `json:"reads"`      // those that read from files
	Hits      int64   `json:"hits"`       // reads less requests that waited
	ReadBytes int64   `json:"read_bytes"` // bytes that were read from files
	Known     bool    `json:"known"`      // the tree was counted; false: the first count is not finished, and the tree is empty
	Tree      MapDir  `json:"tree"`       // the directory that the request names
}

// MapDir counts the files of the base tree in a directory and below it. A file counts as often as it has paths.
type MapDir struct {
	// Name is the name in the directory above, with "/" if directories without other entries were joined. It is "" for Tree.
	Name         string   `json:"name"`
	Files        int64    `json:"files"`              // number of files and links
	Fetched      int64    `json:"fetched"`            // number of these whose contents are on this host
	Fetching     int64    `json:"fetching"`           // number of these whose contents were requested, or wait to be requested
	Bytes        int64    `json:"bytes"`              // size of all files, in bytes; a file of unknown size counts as the average
	FetchedBytes int64    `json:"fetched_bytes"`      // bytes of fetched files
	Requests     int64    `json:"requests"`           // requests of the kernel since the message before, estimated from samples
	Waited       int64    `json:"waited"`             // requests that had to wait for the remote
	Unlisted     bool     `json:"unlisted,omitempty"` // a directory in it is not on this host, so its files are not counted
	Own          bool     `json:"own,omitempty"`      // the files in the directory above that are in none of its directories
	More         int      `json:"more,omitempty"`     // number of directories that this entry stands for, because each is small; 0: one
	Dirs         []MapDir `json:"dirs,omitempty"`     // the directories in it, largest first; none: the map does not show them
}

// Weight returns the size of a directory in a map by bytes or by files.
func (d *MapDir) Weight(bytes bool) int64 {
	if bytes {
		return d.Bytes
	}
	return d.Files
}

// add adds the counts of another directory.
func (d *MapDir) add(o MapDir) {
	d.Files, d.Fetched, d.Fetching = d.Files+o.Files, d.Fetched+o.Fetched, d.Fetching+o.Fetching
	d.Bytes, d.FetchedBytes = d.Bytes+o.Bytes, d.FetchedBytes+o.FetchedBytes
	d.Requests, d.Waited, d.Unlisted = d.Requests+o.Requests, d.Waited+o.Waited, d.Unlisted || o.Unlisted
}

// selection chooses the directories of a Map: it opens the largest one again and again, until the map has as many as the request allows.
type selection struct {
	dirs   []dir    // of a survey; those below a directory follow it
	totals []MapDir // with all below
	open   []place
	least  int64
	bytes  bool
}

// place is a directory that the map has and that can be opened.
type place struct {
	at     int // index in dirs
	out    *MapDir
	weight int64
}

func (s *selection) Len() int           { return len(s.open) }
func (s *selection) Less(i, j int) bool { return s.open[i].weight > s.open[j].weight }
func (s *selection) Swap(i, j int)      { s.open[i], s.open[j] = s.open[j], s.open[i] }
func (s *selection) Push(x any)         { s.open = append(s.open, x.(place)) }
func (s *selection) Pop() any {
	last := s.open[len(s.open)-1]
	s.open = s.open[:len(s.open)-1]
	return last
}

// choose returns the directory with the index root, with at most boxes directories below it.
func (s *selection) choose(root, boxes int) MapDir {
	tree := s.totals[root]
	tree.Name = ""
	s.least = max(1, tree.Weight(s.bytes)/leastShare)
	s.open = []place{{root, &tree, tree.Weight(s.bytes)}}
	for len(s.open) > 0 {
		p := heap.Pop(s).(place)
		below := s.below(p.at)
		if len(below) > boxes {
			continue
		}
		boxes -= len(below)
		p.out.Dirs = make([]MapDir, len(below))
		for i, b := range below {
			p.out.Dirs[i] = *b.out
			if b.at > 0 {
				heap.Push(s, place{b.at, &p.out.Dirs[i], b.weight})
			}
		}
	}
	return tree
}

// below returns the entries of a directory, largest first: its directories, its own files, and one entry for what is small. It returns
// none for a directory that has only files.
func (s *selection) below(at int) []place {
	var list []place
	for i := at + 1; i < s.dirs[at].end; i = s.dirs[i].end {
		from, d := i, s.totals[i]
		for s.dirs[from].end > from+1 && s.dirs[from+1].end == s.dirs[from].end && s.dirs[from].Files == 0 { // one directory and nothing else
			from++
			d.Name += "/" + s.totals[from].Name
		}
		list = append(list, place{from, &d, d.Weight(s.bytes)})
	}
	if len(list) == 0 {
		return nil
	}
	if own := s.dirs[at].MapDir; own.Files > 0 {
		own.Name, own.Own = "", true
		list = append(list, place{0, &own, own.Weight(s.bytes)})
	}
	slices.SortStableFunc(list, func(a, b place) int { return cmp.Compare(b.weight, a.weight) })
	shown := min(len(list), maxChildren)
	for shown > 0 && list[shown-1].weight < s.least {
		shown--
	}
	if len(list)-shown < 2 {
		return list
	}
	small := MapDir{}
	for _, p := range list[shown:] {
		small.add(*p.out)
		small.More++
	}
	return append(list[:shown:shown], place{0, &small, small.Weight(s.bytes)})
}
