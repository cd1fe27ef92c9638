package readahead

import "github.com/artifactfs/artifactfs/fetch/treewalk"

// Smudging is the conversion of contents by a filter such as git-lfs when a file is read. Without the code below,
// git-lfs would download the files of a directory one by one, each when it is read. If a reader has waited smudgeAfter
// times for filtered contents and has skipped at most smudgeSlack files each time, the next files of the directory are
// smudged before they are read. The number of these files doubles with each wait, up to smudgeFiles files. The limit is
// lower than that for blobs, because filtered contents are large.
const (
	smudgeAfter = 3
	smudgeFirst = 4
	smudgeFiles = 64
	smudgeSlack = 3 // number of files that a reader may skip between two waits
)

// Smudging records the waits of one reader for filtered contents.
type Smudging struct {
	Edge string // the last path that the reader waited for or that was smudged ahead, whichever is later in the tree
	// waits is the number of waits in this directory in which the reader skipped at most smudgeSlack files.
	waits int
	// window is the number of files that were smudged ahead after the last wait.
	window int
}

// Waited records that a reader waited for the file at path. gap is the number of files between the edge (s.Edge) and
// path; it is negative if path precedes the edge. Waited returns the number of files to smudge ahead.
func (s *Smudging) Waited(path string, gap int) int {
	switch {
	// A wait in another directory, or after a gap, is treated as the first wait of a new reader, for which no files are
	// smudged ahead yet.
	case treewalk.DirOf(path) != treewalk.DirOf(s.Edge), gap > smudgeSlack, s.waits == 0:
		*s = Smudging{Edge: path, waits: 1}
		return 0
	case gap < 0: // path precedes the edge, so another reader, which runs at the same time, waits for path
		return 0
	}
	s.Edge = path
	if s.waits++; s.waits < smudgeAfter {
		return 0
	}
	s.window = min(max(2*s.window, smudgeFirst), smudgeFiles)
	return s.window
}
