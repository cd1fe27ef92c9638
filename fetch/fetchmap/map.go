// Package fetchmap shows for which parts of a mount's tree the contents are on this host, and which parts are read: a
// Survey counts files, fetched files and requests by directory, and returns the largest directories as a Map, whose
// size is limited.
//
// A Survey exists only while a client follows a mount. It checks for each missing blob whether the blob has arrived. To
// limit the processor time, the caller waits after each Update for a multiple of the time that the Update took (Pace).
//
// Locks: a goroutine that holds Survey.mu acquires no other lock. Survey.mu is not held while the tree is read.
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
	maxChildren  = 40   // number of subdirectories that are shown for one directory
	leastShare   = 1000 // a directory with less than 1/leastShare of the whole tree is not shown separately
)

// MapRequest selects what a Map shows.
type MapRequest struct {
	Path  string `json:"path,omitempty"`  // directory to show, relative to the mount; "": the root
	Bytes bool   `json:"bytes,omitempty"` // select directories by bytes; false: by files
	Boxes int    `json:"boxes,omitempty"` // maximum number of directories in the map; 0: 150
}

// Map is the state of a tree, and the requests in it since the previous Map.
type Map struct {
	Seconds   float64 `json:"seconds"`    // time since the previous message, in seconds
	Requests  int64   `json:"requests"`   // requests of the kernel in this time
	Waited    int64   `json:"waited"`     // number of these requests that had to wait for the remote
	Reads     int64   `json:"reads"`      // number of these requests that read from files
	Hits      int64   `json:"hits"`       // Reads minus Waited
	ReadBytes int64   `json:"read_bytes"` // bytes that were read from files
	// true if the tree was counted; until the first count has ended, the tree is empty
	Known bool   `json:"known"`
	Tree  MapDir `json:"tree"` // counts of the directory that the request names
}

// MapDir counts the files of the base tree in a directory and below it. A file with several paths is counted once for
// each path.
type MapDir struct {
	// Name is the name in the parent directory. If a directory contains one directory and nothing else, both are joined
	// to one entry, whose name has a "/" between them. Name is "" for Map.Tree.
	Name     string `json:"name"`
	Files    int64  `json:"files"`    // number of files and links
	Fetched  int64  `json:"fetched"`  // number of these whose contents are on this host
	Fetching int64  `json:"fetching"` // number of these whose contents were requested, or wait to be requested
	// size of all files, in bytes; the average size is used for files of unknown size
	Bytes        int64 `json:"bytes"`
	FetchedBytes int64 `json:"fetched_bytes"` // bytes of fetched files
	// requests of the kernel since the previous message, estimated from samples
	Requests int64 `json:"requests"`
	Waited   int64 `json:"waited"` // requests that had to wait for the remote
	// the tree of a directory below it is not on this host, so the files there are not counted
	Unlisted bool `json:"unlisted,omitempty"`
	// the entry stands for the files in the parent directory itself, without its subdirectories
	Own  bool `json:"own,omitempty"`
	More int  `json:"more,omitempty"` // number of directories that this entry stands for, because each is small; 0: one
	// the subdirectories, largest first; empty if the map does not show them
	Dirs []MapDir `json:"dirs,omitempty"`
}

// Weight returns the size by which directories are selected for a map: in bytes if bytes is true, otherwise the number
// of files.
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

// selection chooses the directories of a Map: it repeatedly adds the subdirectories of the largest directory, until the
// map has as many directories as the request allows.
type selection struct {
	dirs   []dir    // directories of the Survey; those below a directory follow it
	totals []MapDir // counts of each directory in dirs, with everything below it
	open   []place
	least  int64
	bytes  bool
}

// place is a directory in the map whose subdirectories may be added.
type place struct {
	at     int // index of the directory in dirs; 0 for entries without subdirectories
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

// below returns the entries of a directory, largest first: its subdirectories, its own files, and one entry for all
// small subdirectories together. It returns none for a directory that has only files.
func (s *selection) below(at int) []place {
	var list []place
	for i := at + 1; i < s.dirs[at].end; i = s.dirs[i].end {
		from, d := i, s.totals[i]
		// a directory that contains one directory and nothing else is joined with it
		for s.dirs[from].end > from+1 && s.dirs[from+1].end == s.dirs[from].end && s.dirs[from].Files == 0 {
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
