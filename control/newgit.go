package control

import "strings"

// NewGit is what the git directory of a new session gets, besides what a mount always gives it, before git commands can
// run. The settings may contain secrets, such as those of a URL, so they are neither shown nor logged.
type NewGit struct {
	Head     *NewHead     `json:"head,omitempty"`     // where HEAD is; nil: where the mounted ref says
	Settings []GitSetting `json:"settings,omitempty"` // settings of the repository
	// Called is the name of the mounted remote; "": the user's choice.
	Called string `json:"called,omitempty"`
	// Exclude and Attributes are the contents of info/exclude and info/attributes; empty: the template's.
	Exclude    []byte `json:"exclude,omitempty"`
	Attributes []byte `json:"attributes,omitempty"`
	// Tracking is whether it also gets the remote-tracking branches of the mounted remote, which is a clone. Those whose
	// commits the host lacks are added when the history was fetched.
	Tracking bool `json:"tracking,omitempty"`
}

// GitSetting is one setting of git.
type GitSetting struct {
	Name  string `json:"name"` // name as git config --list prints it
	Value string `json:"value"`
}

// String returns no settings, so that no secret is printed by mistake.
func (*NewGit) String() string { return "(hidden)" }

// HeadOrNil returns the field Head. g may be nil.
func (g *NewGit) HeadOrNil() *NewHead {
	if g == nil {
		return nil
	}
	return g.Head
}

// validate returns an error if git could not use a value. g may be nil.
func (g *NewGit) validate() error {
	if g == nil {
		return nil
	}
	for _, s := range g.Settings {
		if strings.IndexByte(s.Name, '.') < 1 || strings.ContainsAny(s.Name, "\n\x00") || strings.Contains(s.Value, "\x00") {
			return badRequest("invalid name or value of the git setting %q", s.Name)
		}
	}
	if strings.ContainsAny(g.Called, "\n\x00") {
		return badRequest("invalid name of the mounted remote: %q", g.Called)
	}
	return g.Head.validate()
}

// needs returns the names of the fields without which a daemon must not carry out the request.
func (r MountRequest) needs() []string {
	if r.NewGit != nil {
		return []string{"new_git"}
	}
	return nil
}
