package control

import "path/filepath"

// PrefetchRequest requests that contents are fetched before they are read. Only contents for which a process waits have
// precedence.
type PrefetchRequest struct {
	Dir   string   `json:"dir"`   // absolute directory of the mount
	Paths []string `json:"paths"` // paths, directories or glob patterns, relative to the mount; none: everything
	Wait  bool     `json:"wait"`  // send the reply after all matching contents were fetched; false: at once
	// Commits selects versions of files that are fetched into git's object store instead, for programs that read the store
	// without using a promisor remote. An element is either a commit, which selects all of its files, or a range A..B,
	// which selects the old and new versions of the files that the commits of the range changed. The reply is sent after
	// these versions were fetched.
	Commits []string `json:"commits,omitempty"`
}

// PrefetchReply is the output of `prefetch --json`.
type PrefetchReply struct {
	Matched int64 `json:"matched"` // number of blobs that match
	Fetched int64 `json:"fetched"` // number of matching blobs that are on this host
	Bytes   int64 `json:"bytes"`   // total size of the fetched contents; 0 if the request has Commits
}

// validate returns an error if the directory is not absolute.
func (r PrefetchRequest) validate() error {
	if !filepath.IsAbs(r.Dir) {
		return badRequest("directory %q is not absolute", r.Dir)
	}
	return nil
}
