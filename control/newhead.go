package control

import (
	"strings"

	"github.com/artifactfs/artifactfs/git/refname"
)

// NewHead states where HEAD of a new session is, if it is not where HEAD of the checkpoint was. The commit is the same.
type NewHead struct {
	// Branch is the short name of a branch that is created at the commit of HEAD, and to which HEAD points; "": none.
	Branch string `json:"branch,omitempty"`
	// Reset is whether Branch may exist in the checkpoint. Then it is moved to the commit of HEAD.
	Reset  bool `json:"reset,omitempty"`
	Detach bool `json:"detach,omitempty"` // HEAD is detached; Branch is empty
}

// Ref returns the full name of the new branch, or "" if there is none. h may be nil.
func (h *NewHead) Ref() string {
	if h == nil || h.Branch == "" {
		return ""
	}
	return "refs/heads/" + h.Branch
}

// validate returns an error unless h is nil, or names a branch that git can create or a detached HEAD, but not both.
func (h *NewHead) validate() error {
	switch {
	case h == nil:
		return nil
	case h.Detach == (h.Branch != ""):
		return badRequest("head must have either a branch or detach")
	case h.Detach && h.Reset:
		return badRequest("reset requires a branch")
	case !h.Detach && !ValidBranch(h.Branch):
		return badRequest("%q is not a valid branch name", h.Branch)
	}
	return nil
}

// ValidBranch reports whether git can create a branch with this name. Like git check-ref-format --branch, it refuses
// names that look like a flag, and the name HEAD.
func ValidBranch(name string) bool {
	return !strings.HasPrefix(name, "-") && name != "HEAD" && refname.Valid("refs/heads/"+name)
}

// needs returns the names of the fields without which a daemon must not carry out the request.
func (r ForkRequest) needs() (fields []string) {
	if r.Head != nil {
		fields = append(fields, "head")
	}
	if r.Ignored == IgnoredAll {
		fields = append(fields, "ignored")
	}
	if len(r.Carry) > 0 {
		fields = append(fields, "carry")
	}
	for _, field := range r.Mount.needs() {
		fields = append(fields, "mount."+field)
	}
	return fields
}
