package control

import "path/filepath"

// PrefetchRequest asks to fetch the matching contents before all other contents that no read waits
// for.
type PrefetchRequest struct {
	Dir   string   `json:"dir"`   // absolute mount directory
	Paths []string `json:"paths"` // pathspecs relative to Dir: a path, a directory, or a pattern of path.Match; none: everything
	Wait  bool     `json:"wait"`
	// Commits fetches versions of files into git's object store instead, for programs that read it
	// without using a promisor remote: all files of a commit, or both versions of the files that
	// the commits of a range (A..B) changed. The reply is sent when they are fetched.
	Commits []string `json:"commits,omitempty"`
}

// PrefetchReply is the output of `prefetch --json`.
type PrefetchReply struct {
	Matched int64 `json:"matched"`               // blobs
	Fetched int64 `json:"fetched" v5:"hydrated"` // blobs of them on this host now
	Bytes   int64 `json:"bytes"`                 // content bytes of the fetched ones; 0 if the request has Commits
}

func (r PrefetchRequest) validate() error {
	if !filepath.IsAbs(r.Dir) {
		return badRequest("directory %q is not absolute", r.Dir)
	}
	return nil
}
