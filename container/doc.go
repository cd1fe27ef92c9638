// Package container contains the packages that provide mounts as volumes of pods.
//
// Input: requests of the kubelet and of the provisioner (csi). Output: mount requests to the daemon of the node
// (volume, through package control), and bind mounts at the directories of pods.
//
// For the volume of a pod, csi.NodePublishVolume parses the attributes (volume.Parse), sends the mount request, binds
// the mount at the target path, and records both below the state directory, so that a driver that was killed can finish
// or undo the request.
package container
