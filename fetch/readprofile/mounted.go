package readprofile

import "errors"

// Selection is the part of a mount request that names the read profile of the mount. Its JSON fields are fields of the
// mount request.
type Selection struct {
	// Profile is the name of the read profile. The files that programs read in the mount are recorded in it, and the
	// files of earlier recordings are prefetched before others, unless prefetch is "none". "" stands for "auto". "none"
	// means that nothing is recorded and no profile is used.
	Profile string `json:"profile,omitempty"`
	// ShareProfile stores the profile on the session remote too, and reads it from there if this host has no profile with
	// that name.
	ShareProfile bool `json:"share_profile,omitempty"`
}

// errNothingToShare means that a request asks to share the read profile of a mount that has none.
var errNothingToShare = errors.New("share read profile: a mount with the profile \"none\" has no read profile")

// Validate returns an error if a mount request must not contain this selection.
func (s Selection) Validate() error {
	switch {
	case s.Profile == None && s.ShareProfile:
		return errNothingToShare
	case s.Profile == "" || s.Profile == None:
		return nil
	}
	return ValidName(s.Profile)
}

// Usage describes the read profile of a mount, as the status of the mount shows it.
type Usage struct {
	Name string `json:"name"` // name of the profile
	// where the profile in use was read: "store" or "session-remote"; "": no profile is in use
	Source string `json:"source,omitempty"`
	Paths  int64  `json:"paths"`           // number of paths of the profile in use
	Whole  bool   `json:"whole,omitempty"` // the profile in use states that the whole tree is read
	// Recording states that the files that programs read are still being recorded.
	Recording bool  `json:"recording"`
	Recorded  int64 `json:"recorded"`         // number of paths that were recorded in this mount
	Shared    bool  `json:"shared,omitempty"` // the profile is also stored on the session remote
}
