package csi

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/artifactfs/artifactfs/container/volume"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

// newRecord returns the record of a volume that is to be mounted at dir. It returns an error if the capability is not
// supported.
func newRecord(id, dir string, c *csi.VolumeCapability, context map[string]string) (*record, error) {
	attributes, names := split(context)
	rec := &record{ID: id, Attributes: attributes, Names: names, Dir: dir}
	switch c.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		rec.ReadOnly = true
	}
	for _, option := range c.GetMount().GetMountFlags() {
		switch option {
		case "ro":
			rec.ReadOnly = true
		case "rw", "noatime", "relatime", "nosuid", "nodev": // ignored, because every mount behaves in this way
		default:
			return nil, invalid("mount option %q is not supported: use attributes of the volume", option)
		}
	}
	if rec.Group = c.GetMount().GetVolumeMountGroup(); rec.Group != "" {
		if _, err := strconv.ParseUint(rec.Group, 10, 32); err != nil {
			return nil, invalid("group %q of the volume is not an id", rec.Group)
		}
	}
	return rec, nil
}

// volume returns the volume that the record describes, with the given secrets.
func (r *record) volume(secrets map[string]string) (volume.Volume, error) {
	v, err := volume.Parse(r.Attributes, secrets, r.Names)
	if err != nil {
		return v, err
	}
	v.Request.ReadOnly = v.Request.ReadOnly || r.ReadOnly
	// The session of an ephemeral volume is named by the author of the pod. The name may be that of a session of
	// another namespace on this node, whose data the pod must not get.
	if !r.Persistent {
		v.Request.Tenant = cmp.Or(r.Names["namespace"], "none")
	}
	if r.Group != "" {
		id, _ := strconv.ParseUint(r.Group, 10, 32) // newRecord has checked the group, so there is no error
		if r.Attributes["gid"] == "" {
			v.Request.GID = uint32(id)
		}
		v.Request.GroupWrite = true
	}
	return v, nil
}

// checkEphemeral returns an error if a volume names a file or directory of the node. The author of a pod chooses the
// attributes of an ephemeral volume, and must not use files of the node: the daemon would read and write repositories
// there, or run a program as a source of tokens.
func checkEphemeral(v volume.Volume) error {
	r := v.Request
	if r.TokenFile != "" {
		return invalid("attribute tokenFile is not permitted in an ephemeral volume: use the key token of a Secret")
	}
	remotes := map[string]string{"remote": r.Remote, "via": r.Via}
	switch r.SessionOptions.Remote {
	case control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
	default:
		remotes["sessionRemote"] = r.SessionOptions.Remote
	}
	for name, remote := range remotes {
		if at, err := endpoint.Parse(remote); err == nil && at.Scheme == endpoint.Local {
			return invalid("attribute %s is a path of the node, which is not permitted in an ephemeral volume: use a URL", name)
		}
	}
	return nil
}

// has reports whether the volume is mounted at path, or visible there by a bind mount.
func (r *record) has(path string) bool { return r.Dir == path || slices.Contains(r.Targets, path) }
