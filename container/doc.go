// Package container is the folder of mounts as volumes of pods.
//
// In:  requests of the kubelet and of the provisioner (csi). Out: mount requests to the daemon of the node (volume, through package
// control), and bind mounts at the directories of pods.
//
// The way of a pod's volume: csi.NodePublishVolume parses the attributes (volume.Parse), sends the mount request, binds the mount at the
// target, and records both below the state directory, so that a driver that was killed can finish or undo it.
package container
