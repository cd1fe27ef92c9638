package csi

import (
	"context"
	"maps"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/artifactfs/artifactfs/container/volume"
)

// controller creates and deletes persistent volumes. A volume is a session, which the first mount creates, so the
// controller only checks the parameters. It deletes no session, so that the work of users does not depend on objects of
// the cluster.
type controller struct {
	csi.UnimplementedControllerServer
	Config
	records *records
}

const (
	metaPrefix = "csi.storage.k8s.io/" // prefix of attributes that Kubernetes adds
	// ignoredPrefix is the prefix of an attribute that external-provisioner adds to each volume, and that contains the
	// identity of external-provisioner.
	ignoredPrefix = "storage.kubernetes.io/"
)

// attributeSession is the attribute with the name of the session.
const attributeSession = "session"

// split separates the attributes of a volume from those that Kubernetes adds. The latter become names.
func split(all map[string]string) (attributes map[string]string, names volume.Names) {
	attributes, names = map[string]string{}, volume.Names{}
	for key, value := range all {
		rest, meta := strings.CutPrefix(key, metaPrefix)
		switch {
		case strings.HasPrefix(key, ignoredPrefix):
		case !meta:
			attributes[key] = value
		case rest == "pod.name":
			names["pod"] = value
		case rest == "pod.namespace", rest == "pvc/namespace":
			names["namespace"] = value
		case rest == "pod.uid":
			names["uid"] = value
		case rest == "serviceAccount.name":
			names["serviceAccount"] = value
		case rest == "pvc/name":
			names["pvc"] = value
		case rest == "pv/name":
			names["pv"] = value
		}
	}
	return attributes, names
}

func (c *controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, invalid("name of the volume is missing")
	}
	if err := checkCapabilities(r.GetVolumeCapabilities()); err != nil {
		return nil, err
	}
	if r.GetVolumeContentSource() != nil {
		return nil, invalid("volumes cannot be created from others: name a session of a session remote in the parameters")
	}
	leave, err := c.records.enter(r.GetName())
	if err != nil {
		return nil, err
	}
	defer leave()
	attributes, names := split(r.GetParameters())
	if attributes[attributeSession] == "" {
		attributes[attributeSession] = r.GetName()
	}
	v, err := volume.Parse(attributes, nil, names)
	if err != nil {
		return nil, invalid("parameters: %v", err)
	}
	if err := checkPersistent(v); err != nil {
		return nil, err
	}
	// the name of the session is stored, because the node cannot replace the names in it
	attributes[attributeSession] = v.Request.Session
	size := r.GetCapacityRange().GetRequiredBytes()
	rec := &record{ID: r.GetName(), Attributes: attributes, Capacity: size}
	old, err := c.records.load(ofController, r.GetName())
	if err != nil {
		return nil, failure(err)
	}
	if old != nil && !old.same(rec) {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s exists with other parameters or another size", r.GetName())
	}
	if err := c.records.save(ofController, rec); err != nil {
		return nil, failure(err)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: r.GetName(), VolumeContext: maps.Clone(attributes), CapacityBytes: size}}, nil
}

func (c *controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, invalid("id of the volume is missing")
	}
	leave, err := c.records.enter(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := c.records.remove(ofController, r.GetVolumeId()); err != nil {
		return nil, failure(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (c *controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (
	*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, invalid("id of the volume is missing")
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("capabilities of the volume are missing")
	}
	rec, err := c.records.load(ofController, r.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	if rec == nil {
		return nil, status.Errorf(codes.NotFound, "volume %s does not exist", r.GetVolumeId())
	}
	if err := checkCapabilities(r.GetVolumeCapabilities()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters()}},
		nil
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (
	*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

// checkPersistent returns an error for a persistent volume whose session would exist on one node only, unless the
// attributes allow this.
func checkPersistent(v volume.Volume) error {
	if !v.Request.ReadOnly && v.Request.SessionOptions.Remote == "" {
		return invalid("attribute sessionRemote is missing: a persistent volume is a session, which other nodes can mount only if it is on a " +
			"session remote (embedded keeps it on one node)")
	}
	return nil
}

// checkCapabilities returns an error if a volume cannot have all of these capabilities.
func checkCapabilities(all []*csi.VolumeCapability) error {
	if len(all) == 0 {
		return invalid("capabilities of the volume are missing")
	}
	for _, c := range all {
		if err := checkCapability(c); err != nil {
			return err
		}
	}
	return nil
}

// checkCapability returns an error if a volume cannot have this capability. A session has one writer, so a volume
// cannot be written on several nodes at once.
func checkCapability(c *csi.VolumeCapability) error {
	switch mode := c.GetAccessMode().GetMode(); {
	case c == nil:
		return invalid("capability of the volume is missing")
	case c.GetBlock() != nil:
		return invalid("volumes are file systems, and cannot be block devices")
	case c.GetMount() == nil:
		return invalid("access type of the volume is missing")
	case mode == csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:
		return invalid("a session is mounted on one node at a time, so %s is not possible; use ReadWriteOnce, or a read-only volume", mode)
	case mode == csi.VolumeCapability_AccessMode_UNKNOWN:
		return invalid("access mode of the volume is missing")
	}
	return nil
}
