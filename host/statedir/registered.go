package statedir

import (
	"github.com/artifactfs/artifactfs/control"
)

// RegistryVersion is the version of the format of the files in the directory registry/.
const RegistryVersion = 1

// Registered is the contents of a file in the directory registry/. It describes a mount that is restored after a
// restart of the machine. New fields may be added without a new version.
type Registered struct {
	Version int                  `json:"version"` // version of the format; see RegistryVersion
	Request control.MountRequest `json:"request"` // request that created the mount, with a URL without secrets
	Record  Record               `json:"record"`  // record of the mount, which contains its base commit
}
