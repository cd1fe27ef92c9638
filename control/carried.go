package control

import "slices"

// Ignored states which of the paths that checkpoints leave out are carried to a fork: ignored files, secrets, files
// that are too large, and those of types that git cannot store.
type Ignored string

const (
	// IgnoredDefault carries the paths that the file .worktreeinclude in the root names, or all if there is no such file.
	IgnoredDefault Ignored = ""
	// IgnoredAll carries all of them. If that is not possible, the fork fails.
	IgnoredAll Ignored = "all"
	// IgnoredListed carries those that the file .worktreeinclude or the request names, and none if there are no names.
	IgnoredListed Ignored = "listed"
	// IgnoredNone carries none.
	IgnoredNone Ignored = "none"
)

// Carried describes the files that a fork has in addition to those of the checkpoint from which it has started. They
// are as they were in the parent session at the moment of the checkpoint.
type Carried struct {
	Files int64 `json:"files"` // number of files and links
	Dirs  int64 `json:"dirs"`  // number of directories
	Bytes int64 `json:"bytes"` // size of the files, which use no further disk space until one of the sessions changes them
	// Secrets are paths among them that look like secrets, at most 100. They are in no checkpoint.
	Secrets []string `json:"secrets,omitempty"`
	Failed  string   `json:"failed,omitempty"` // why nothing was carried; missing: it was
}

// mostCarried is the maximum number of paths that a Carried names.
const mostCarried = 100

// SetSecrets sets c.Secrets to the first of the paths.
func (c *Carried) SetSecrets(paths []string) {
	c.Secrets = slices.Clone(paths[:min(len(paths), mostCarried)])
}

// validateIgnored checks the fields that select the carried files.
func (r ForkRequest) validateIgnored() error {
	switch r.Ignored {
	case IgnoredDefault, IgnoredListed:
	case IgnoredAll:
		if len(r.Carry) > 0 {
			return badRequest("paths to carry cannot be named if all ignored files are carried")
		}
	case IgnoredNone:
		if len(r.Carry)+len(r.LeaveOut) > 0 {
			return badRequest("paths to carry cannot be named if no ignored files are carried")
		}
	default:
		return badRequest("unknown choice of ignored files: %q", r.Ignored)
	}
	wanted := r.Ignored == IgnoredAll || r.Ignored == IgnoredListed || len(r.Carry)+len(r.LeaveOut) > 0
	switch {
	case wanted && r.Mount.ReadOnly:
		return badRequest("a read-only mount of a checkpoint has no ignored files")
	case wanted && r.SessionRemote != "":
		return badRequest("the fork of a session on a session remote has no ignored files")
	}
	return nil
}
