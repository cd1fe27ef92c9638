package control

import "github.com/artifactfs/artifactfs/fetch/readprofile"

// MountProfile is the part of a MountRequest that names the read profile of the mount: the files that programs read are recorded, so that
// a later mount can prefetch them. Its JSON fields are fields of the request itself.
type MountProfile struct {
	// Profile is the name of the read profile: the files that programs read in the mount are recorded in it, and those of earlier
	// recordings are prefetched before others, unless Prefetch is "none". "": "auto"; "none": nothing is recorded, and no profile is used.
	Profile string `json:"profile,omitempty"`
	// ShareProfile stores the profile on the session remote too, and reads it from there if this host has no profile with that name.
	ShareProfile bool `json:"share_profile,omitempty"`
}

// validate returns an error if no mount can have this profile.
func (p MountProfile) validate() error {
	switch {
	case p.Profile == readprofile.None && p.ShareProfile:
		return badRequest("a mount with profile %q has no profile to share", p.Profile)
	case p.Profile == "" || p.Profile == readprofile.None:
		return nil
	}
	if err := readprofile.ValidName(p.Profile); err != nil {
		return badRequest("%v", err)
	}
	return nil
}

// ProfileStatus describes the read profile of a mount.
type ProfileStatus struct {
	Name   string `json:"name"`             // name of the profile
	Source string `json:"source,omitempty"` // where the profile in use was read: "store" or "session-remote"; "": no profile is in use
	Paths  int64  `json:"paths"`            // number of paths of the profile in use
	Whole  bool   `json:"whole,omitempty"`  // the profile in use states that the whole tree is read
	// Recording states that the files that programs read are still being recorded.
	Recording bool  `json:"recording"`
	Recorded  int64 `json:"recorded"`         // number of paths that were recorded in this mount
	Shared    bool  `json:"shared,omitempty"` // the profile is also stored on the session remote
}
