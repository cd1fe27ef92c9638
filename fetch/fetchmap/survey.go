package fetchmap

import (
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

const (
	// maxBlobs is the number of missing blobs that a Survey remembers, about 20 MB. If more are missing, each Update walks
	// through the whole tree.
	maxBlobs = 1 << 19
	// recount is the age at which a count of everything is repeated, because contents may have been evicted.
	recount = 30 * time.Second
	// share limits the processor time of a Survey to 1/share of one processor.
	share = 50
)

// Tree is the tree that a mount shows. Its methods never wait for the remote.
type Tree interface {
	// Shown returns the id of the tree.
	Shown() object.ID
	// LocalTree returns the entries of a tree, and false if the tree is not on this host.
	LocalTree(id object.ID) ([]object.TreeEntry, bool)
	// BlobState returns the size of a blob (-1: unknown), whether it is fetched, and whether it was requested or waits to
	// be requested.
	BlobState(id object.ID) (size int64, fetched, pending bool)
}

// dir is a directory with the counts of the files directly in it. Its subdirectories follow it in Survey.dirs.
type dir struct {
	MapDir
	end     int   // index after the last directory below it
	unsized int64 // number of files of unknown size, which MapDir.Bytes does not contain
}

// blob is a file whose contents were missing, or whose size was unknown, at the last count.
type blob struct {
	id      object.ID
	dir     int32
	fetched bool
	sized   bool
}

// Survey counts the files and requests of a tree by directory. Note may be called from any goroutine, the other methods
// from one.
type Survey struct {
	tree    Tree
	shown   object.ID // tree that was counted
	counted time.Time // time at which the last count of everything began
	blobs   []blob    // blobs to check in the next Update; at most maxBlobs
	// the next Update must count everything, because more than maxBlobs blobs were missing or directories have not
	// arrived yet
	again bool

	mu     sync.Mutex
	dirs   []dir          // the root is first, and each directory precedes those below it
	byPath map[string]int // index in dirs

	since  time.Time // time of the last Map
	before Counters
	bytes  int64 // number of bytes that were read from files since the last Map
}

// Counters count the requests of a mount since its start. They are more precise than Events, which may be samples.
type Counters struct {
	Requests, Waited, Reads int64 // requests, those that had to wait for the remote, and those that read from files
}

// NewSurvey returns a Survey that has not counted anything yet. c are the present counters.
func NewSurvey(t Tree, c Counters) *Survey {
	return &Survey{tree: t, dirs: []dir{{end: 1}}, byPath: map[string]int{"": 0}, before: c, since: time.Now()}
}

// Event is a request of the kernel, or a sample that stands for several.
type Event struct {
	Weight int64  // number of requests for which the event stands
	Path   string // path of the file or directory, relative to the mount
	Waited bool   // the request had to wait for the remote
	Bytes  int64  // number of bytes that were read from a file
}

// Note counts a request for its directory or, if the tree does not have that directory, for the nearest directory above
// it.
func (s *Survey) Note(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += e.Weight * e.Bytes
	path := e.Path
	at, ok := s.byPath[path]
	for !ok {
		path = path[:max(0, strings.LastIndexByte(path, '/'))]
		at, ok = s.byPath[path]
	}
	s.dirs[at].Requests += e.Weight
	if e.Waited {
		s.dirs[at].Waited += e.Weight
	}
}

// Pace returns how long the caller must wait after an Update, so that the Survey uses little processor time. took is
// the duration of the Update.
func Pace(took time.Duration) time.Duration { return share * took }

// Update updates the counts. It checks only the blobs that were missing at the last count, unless the mount shows
// another tree, directories have not arrived yet, or the last count of everything is older than recount.
func (s *Survey) Update() {
	if s.counted.IsZero() || s.shown != s.tree.Shown() || s.again || time.Since(s.counted) > recount {
		s.count()
		return
	}
	type change struct{ fetched, fetching, bytes, fetchedBytes, sized int64 }
	changes := map[int32]change{}
	kept := s.blobs[:0]
	for _, b := range s.blobs {
		size, fetched, pending := s.tree.BlobState(b.id)
		c := changes[b.dir]
		if size >= 0 && !b.sized {
			b.sized = true
			c.bytes, c.sized = c.bytes+size, c.sized+1
			if b.fetched {
				c.fetchedBytes += size
			}
		}
		switch {
		case fetched && !b.fetched:
			b.fetched = true
			c.fetched, c.fetchedBytes = c.fetched+1, c.fetchedBytes+max(0, size)
		case pending:
			c.fetching++
		}
		changes[b.dir] = c
		if !b.fetched || !b.sized {
			kept = append(kept, b)
		}
	}
	s.blobs = kept
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.dirs {
		d, c := &s.dirs[i], changes[int32(i)]
		d.Fetched, d.Fetching, d.FetchedBytes = d.Fetched+c.fetched, c.fetching, d.FetchedBytes+c.fetchedBytes
		d.Bytes, d.unsized = d.Bytes+c.bytes, d.unsized-c.sized
	}
}

// count counts everything, by a walk through the whole tree.
func (s *Survey) count() {
	w := walk{tree: s.tree, byPath: map[string]int{}}
	began, shown := time.Now(), s.tree.Shown()
	w.enter(shown, "", "")
	s.blobs, s.again, s.shown, s.counted = w.blobs, w.many || w.unlisted, shown, began
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, at := range s.byPath { // keep the numbers of requests that were counted before and during the walk
		if now, ok := w.byPath[path]; ok {
			w.dirs[now].Requests, w.dirs[now].Waited = s.dirs[at].Requests, s.dirs[at].Waited
		}
	}
	s.dirs, s.byPath = w.dirs, w.byPath
}

// walk is one count of a tree.
type walk struct {
	tree   Tree
	dirs   []dir
	byPath map[string]int
	blobs  []blob
	// many means that more than maxBlobs blobs are missing; unlisted means that the tree of a directory is not on this
	// host.
	many, unlisted bool
}

// enter counts a directory and everything below it.
func (w *walk) enter(id object.ID, path, name string) {
	at := len(w.dirs)
	w.dirs = append(w.dirs, dir{MapDir: MapDir{Name: name}})
	w.byPath[path] = at
	own := dir{MapDir: MapDir{Name: name}}
	if !id.IsZero() && id != object.EmptyTree(id.Format()) {
		entries, ok := w.tree.LocalTree(id)
		own.Unlisted = !ok
		w.unlisted = w.unlisted || !ok
		for _, e := range entries {
			switch {
			case e.Mode == object.ModeDir:
				below := e.Name
				if path != "" {
					below = path + "/" + e.Name
				}
				w.enter(e.ID, below, e.Name)
			case e.Mode.IsBlob():
				w.file(&own, int32(at), e.ID)
			}
		}
	}
	own.end = len(w.dirs)
	w.dirs[at] = own
}

// file counts a file of the directory d. at is the index of d.
func (w *walk) file(d *dir, at int32, id object.ID) {
	size, fetched, pending := w.tree.BlobState(id)
	d.Files++
	if size < 0 {
		d.unsized++
	} else {
		d.Bytes += size
	}
	switch {
	case fetched:
		d.Fetched, d.FetchedBytes = d.Fetched+1, d.FetchedBytes+max(0, size)
	case pending:
		d.Fetching++
	}
	if fetched && size >= 0 {
		return
	}
	if w.many = w.many || len(w.blobs) == maxBlobs; w.many {
		w.blobs = nil
		return
	}
	w.blobs = append(w.blobs, blob{id, at, fetched, size >= 0})
}

// Map returns the state of the tree, and the requests since the last call. c are the present counters.
func (s *Survey) Map(r MapRequest, c Counters) Map {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	m := Map{Seconds: now.Sub(s.since).Seconds(), Requests: c.Requests - s.before.Requests,
		Waited: c.Waited - s.before.Waited,
		Reads:  c.Reads - s.before.Reads, ReadBytes: s.bytes, Known: !s.counted.IsZero()}
	m.Hits = max(0, m.Reads-m.Waited)
	s.since, s.before, s.bytes = now, c, 0
	sel := selection{dirs: s.dirs, totals: s.totals(), bytes: r.Bytes}
	for i := range s.dirs {
		s.dirs[i].Requests, s.dirs[i].Waited = 0, 0
	}
	at := s.byPath[strings.Trim(r.Path, "/")] // byPath returns 0, the root, if the tree has no such directory
	if r.Boxes <= 0 {
		r.Boxes = DefaultBoxes
	}
	m.Tree = sel.choose(at, min(r.Boxes, MaxBoxes))
	return m
}

// totals returns the counts of each directory with everything below it. The average size is used for files of unknown
// size. The caller holds mu.
func (s *Survey) totals() []MapDir {
	var files, unsized, bytes int64
	for i := range s.dirs {
		files, unsized, bytes = files+s.dirs[i].Files, unsized+s.dirs[i].unsized, bytes+s.dirs[i].Bytes
	}
	average := int64(1)
	if files > unsized {
		average = max(1, bytes/(files-unsized))
	}
	totals := make([]MapDir, len(s.dirs))
	for i := len(s.dirs) - 1; i >= 0; i-- {
		d := s.dirs[i].MapDir
		d.Bytes += s.dirs[i].unsized * average
		for below := i + 1; below < s.dirs[i].end; below = s.dirs[below].end {
			d.add(totals[below])
		}
		totals[i] = d
	}
	return totals
}
