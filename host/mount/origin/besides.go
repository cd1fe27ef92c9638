package origin

import "github.com/artifactfs/artifactfs/control"

// Reply returns b in the form of a reply, after the files were added to the fork. It returns nil if there were no files
// to carry.
func (b Besides) Reply() *control.Carried {
	c := &control.Carried{Failed: b.Failed}
	if b.Files == nil {
		if b.Failed == "" {
			return nil
		}
		return c
	}
	c.Files, c.Dirs, c.Bytes = b.Files.Files, b.Files.Dirs, b.Files.Bytes
	c.SetSecrets(b.Secrets)
	for _, l := range b.Files.Left {
		c.Add(l.Path, string(l.Why))
	}
	if c.Files+c.Dirs == 0 && len(c.Left) == 0 {
		return nil
	}
	return c
}
