"""Default policy rules of the OpenStack services: those that gpuyard's policy files name, each with its check.

A file replaces a rule as a whole, so what it adds to one must be added to what the service has. For Nova and Glance the
table also has every rule that names ``context_is_admin``, for policies.py to take that away, and for Nova those that
did so once. A test compares with the services that are installed. Another release than `RELEASE` may have rules that go
by ``context_is_admin`` and are not here: by them gpuyard's role would be an admin.
"""

from __future__ import annotations

from collections.abc import Mapping

ADMIN = "rule:context_is_admin"
RELEASE = "2026.2"

DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "nova": {
        **dict.fromkeys((
            "os_compute_api:os-admin-actions:reset_state",
            "os_compute_api:os-admin-actions:inject_network_info",
            "os_compute_api:os-aggregates:set_metadata",
            "os_compute_api:os-aggregates:add_host",
            "os_compute_api:os-aggregates:create",
            "os_compute_api:os-aggregates:remove_host",
            "os_compute_api:os-aggregates:update",
            "os_compute_api:os-aggregates:index",
            "os_compute_api:os-aggregates:delete",
            "os_compute_api:os-aggregates:show",
            "compute:aggregates:images",
            "os_compute_api:os-availability-zone:detail",
            "os_compute_api:os-baremetal-nodes:list",
            "os_compute_api:os-baremetal-nodes:show",
            "os_compute_api:os-console-auth-tokens",
            "os_compute_api:os-evacuate",
            "os_compute_api:os-extended-server-attributes",
            "os_compute_api:os-flavor-access:add_tenant_access",
            "os_compute_api:os-flavor-access:remove_tenant_access",
            "os_compute_api:os-flavor-access",
            "os_compute_api:os-flavor-extra-specs:create",
            "os_compute_api:os-flavor-extra-specs:update",
            "os_compute_api:os-flavor-extra-specs:delete",
            "os_compute_api:os-flavor-manage:create",
            "os_compute_api:os-flavor-manage:update",
            "os_compute_api:os-flavor-manage:delete",
            "os_compute_api:os-hosts:list",
            "os_compute_api:os-hosts:show",
            "os_compute_api:os-hosts:update",
            "os_compute_api:os-hosts:reboot",
            "os_compute_api:os-hosts:shutdown",
            "os_compute_api:os-hosts:start",
            "os_compute_api:os-hypervisors:list",
            "os_compute_api:os-hypervisors:list-detail",
            "os_compute_api:os-hypervisors:statistics",
            "os_compute_api:os-hypervisors:show",
            "os_compute_api:os-hypervisors:uptime",
            "os_compute_api:os-hypervisors:search",
            "os_compute_api:os-hypervisors:servers",
            "os_compute_api:os-instance-actions:events:details",
            "os_compute_api:os-instance-actions:events",
            "os_compute_api:os-instance-usage-audit-log:list",
            "os_compute_api:os-instance-usage-audit-log:show",
            "os_compute_api:limits:other_project",
            "os_compute_api:os-lock-server:unlock:unlock_override",
            "os_compute_api:os-migrate-server:migrate:host",
            "os_compute_api:os-migrate-server:migrate_live:host",
            "os_compute_api:os-migrations:index:all_projects",
            "os_compute_api:os-migrations:index:host",
            "os_compute_api:os-quota-class-sets:show",
            "os_compute_api:os-quota-class-sets:update",
            "os_compute_api:os-quota-sets:update",
            "os_compute_api:os-quota-sets:delete",
            "os_compute_api:os-server-diagnostics",
            "os_compute_api:os-server-groups:index:all_projects",
            "compute:server:topology:host:index",
            "os_compute_api:servers:index:get_all_tenants",
            "os_compute_api:servers:detail:get_all_tenants",
            "os_compute_api:servers:allow_all_filters",
            "os_compute_api:servers:show:host_status",
            "os_compute_api:servers:show:host_status:unknown-only",
            "os_compute_api:servers:create:forced_host",
            "compute:servers:create:requested_destination",
            "os_compute_api:servers:create:zero_disk_flavor",
            "network:attach_external_network",
            "os_compute_api:servers:migrations:show",
            "os_compute_api:servers:migrations:index:host",
            "os_compute_api:os-services:list",
            "os_compute_api:os-services:update",
            "os_compute_api:os-services:delete",
            "os_compute_api:os-shelve:unshelve_to_host",
            "os_compute_api:os-shelve:shelve_offload",
            "os_compute_api:os-simple-tenant-usage:list",
        ), ADMIN),
        "admin_or_owner": "is_admin:True or project_id:%(project_id)s",
        "admin_api": "is_admin:True",
        "project_manager_or_admin": "rule:project_manager_api or rule:context_is_admin",
        "project_member_or_admin": "rule:project_member_api or rule:context_is_admin",
        "project_reader_or_admin": "rule:project_reader_api or rule:context_is_admin",
        "service_or_admin": "rule:service_api or rule:context_is_admin",
        "os_compute_api:os-flavor-extra-specs:index": "rule:project_reader_or_admin",
        "os_compute_api:os-instance-actions:list": "rule:project_reader_or_admin",
        "os_compute_api:os-instance-actions:show": "rule:project_reader_or_admin",
        "os_compute_api:os-keypairs:index": "(rule:context_is_admin) or user_id:%(user_id)s",
        "os_compute_api:os-keypairs:create": "(rule:context_is_admin) or user_id:%(user_id)s",
        "os_compute_api:os-keypairs:delete": "(rule:context_is_admin) or user_id:%(user_id)s",
        "os_compute_api:os-keypairs:show": "(rule:context_is_admin) or user_id:%(user_id)s",
        "os_compute_api:os-migrate-server:migrate": "rule:project_manager_or_admin",
        "os_compute_api:os-migrate-server:migrate_live": "rule:project_manager_or_admin",
        "os_compute_api:os-migrations:index": "rule:project_manager_or_admin",
        "os_compute_api:servers:migrations:index": "rule:project_manager_or_admin",
        "os_compute_api:server-metadata:create": "rule:project_member_or_admin",
        "os_compute_api:server-metadata:delete": "rule:project_member_or_admin",
        "os_compute_api:servers:index": "rule:project_reader_or_admin",
        "os_compute_api:servers:detail": "rule:project_reader_or_admin",
        "os_compute_api:servers:show": "rule:project_reader_or_admin",
        "os_compute_api:servers:show:flavor-extra-specs": "rule:project_reader_or_admin",
        "os_compute_api:servers:delete": "rule:project_member_or_admin",
        "os_compute_api:servers:create_image": "rule:project_member_or_admin",
        "os_compute_api:servers:create_image:allow_volume_backed": "rule:project_member_or_admin",
        "os_compute_api:servers:stop": "rule:project_member_or_admin",
        "os_compute_api:os-shelve:shelve": "rule:project_member_or_admin",
    },
    "glance": {
        **dict.fromkeys((
            "publicize_image",
            "delete_image_location",
            "manage_image_cache",
            "copy_image",
            "list_cached_nodes",
            "tasks_api_access",
            "metadef_admin",
            "cache_image",
            "cache_list",
            "cache_delete",
            "cache_clean",
            "cache_prune",
        ), ADMIN),
        "add_image": "rule:context_is_admin or (role:member and project_id:%(project_id)s and project_id:%(owner)s)",
        "delete_image": "rule:context_is_admin or (role:member and project_id:%(project_id)s)",
        "get_image": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or project_id:%(member_id)s or "
            "'community':%(visibility)s or 'public':%(visibility)s or 'shared':%(visibility)s))"
        ),
        "get_images": "rule:context_is_admin or (role:reader and project_id:%(project_id)s)",
        "modify_image": "rule:context_is_admin or (role:member and project_id:%(project_id)s)",
        "communitize_image": "rule:context_is_admin or (role:member and project_id:%(project_id)s)",
        "download_image": (
            "rule:context_is_admin or (role:member and (project_id:%(project_id)s or project_id:%(member_id)s or "
            "'community':%(visibility)s or 'public':%(visibility)s or 'shared':%(visibility)s))"
        ),
        "download_from_store": (
            "rule:context_is_admin or (role:member and (project_id:%(project_id)s or project_id:%(member_id)s or "
            "'community':%(visibility)s or 'public':%(visibility)s or 'shared':%(visibility)s))"
        ),
        "upload_image": "rule:context_is_admin or (role:member and project_id:%(project_id)s)",
        "get_image_location": "rule:context_is_admin or (role:reader and project_id:%(project_id)s)",
        "set_image_location": "rule:context_is_admin or (role:member and project_id:%(project_id)s)",
        "add_member": "rule:context_is_admin or (role:member and project_id:%(project_id)s)",
        "delete_member": "rule:context_is_admin or (role:member and project_id:%(project_id)s)",
        "get_member": (
            "rule:context_is_admin or role:reader and (project_id:%(project_id)s or project_id:%(member_id)s)"
        ),
        "get_members": (
            "rule:context_is_admin or role:reader and (project_id:%(project_id)s or project_id:%(member_id)s)"
        ),
        "modify_member": "rule:context_is_admin or (role:member and project_id:%(member_id)s)",
        "deactivate": "rule:context_is_admin or (role:member and project_id:%(project_id)s)",
        "reactivate": "rule:context_is_admin or (role:member and project_id:%(project_id)s)",
        "get_metadef_namespace": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or 'public':%(visibility)s))"
        ),
        "get_metadef_namespaces": "rule:context_is_admin or (role:reader and project_id:%(project_id)s)",
        "get_metadef_object": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or 'public':%(visibility)s))"
        ),
        "get_metadef_objects": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or 'public':%(visibility)s))"
        ),
        "list_metadef_resource_types": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or 'public':%(visibility)s))"
        ),
        "get_metadef_resource_type": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or 'public':%(visibility)s))"
        ),
        "get_metadef_property": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or 'public':%(visibility)s))"
        ),
        "get_metadef_properties": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or 'public':%(visibility)s))"
        ),
        "get_metadef_tag": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or 'public':%(visibility)s))"
        ),
        "get_metadef_tags": (
            "rule:context_is_admin or (role:reader and (project_id:%(project_id)s or 'public':%(visibility)s))"
        ),
        "stores_info_detail": "rule:context_is_admin or rule:service_api",
    },
    "placement": {
        "placement:resource_providers:list": "rule:admin_or_service_api",
        "placement:resource_classes:list": "rule:admin_or_service_api",
        "placement:resource_providers:inventories:list": "rule:admin_or_service_api",
        "placement:resource_providers:inventories:update": "rule:admin_or_service_api",
        "placement:resource_providers:usages": "rule:admin_or_service_api",
        "placement:usages": "rule:admin_or_project_reader_or_service_api",
        "placement:allocations:list": "rule:admin_or_service_api",
        "placement:allocations:update": "rule:admin_or_service_api",
        "placement:allocations:delete": "rule:admin_or_service_api",
        "placement:resource_providers:allocations:list": "rule:admin_or_service_api",
        "placement:allocation_candidates:list": "rule:admin_or_service_api",
    },
    "keystone": {
        "identity:get_domain": (
            "rule:admin_required or (role:reader and system_scope:all) or token.domain.id:%(target.domain.id)s "
            "or token.project.domain.id:%(target.domain.id)s"
        ),
        "identity:list_domains": (
            "rule:admin_required or (role:reader and system_scope:all) or (role:reader and "
            "domain_id:%(target.domain.id)s)"
        ),
        "identity:list_endpoints": "rule:admin_required or (role:reader and system_scope:all)",
        "identity:create_limits": "rule:admin_required",
        "identity:update_limit": "rule:admin_required",
        "identity:delete_limit": "rule:admin_required",
        "identity:get_project": (
            "(rule:admin_required) or (role:reader and system_scope:all) or (role:reader and "
            "domain_id:%(target.project.domain_id)s and not None:%(target.project.domain_id)s) or "
            "project_id:%(target.project.id)s"
        ),
        "identity:list_projects": (
            "(rule:admin_required) or (role:reader and system_scope:all) or (role:reader and "
            "domain_id:%(target.domain_id)s)"
        ),
        "identity:list_user_projects": (
            "(rule:admin_required) or (role:reader and system_scope:all) or (role:reader and "
            "domain_id:%(target.user.domain_id)s) or user_id:%(target.user.id)s"
        ),
        "identity:list_revoke_events": "rule:service_or_admin",
        "identity:list_role_assignments": (
            "(rule:admin_required) or (role:reader and system_scope:all) or (role:reader and "
            "domain_id:%(target.domain_id)s and not None:%(target.domain_id)s)"
        ),
        "identity:list_services": "rule:admin_required or (role:reader and system_scope:all)",
        "identity:validate_token": (
            "rule:admin_required or (role:reader and system_scope:all) or rule:service_role or rule:token_subject"
        ),
        "identity:get_user": (
            "(rule:admin_required) or (role:reader and system_scope:all) or (role:reader and "
            "token.domain.id:%(target.user.domain_id)s) or user_id:%(target.user.id)s"
        ),
        "identity:list_users": (
            "(rule:admin_required) or (role:reader and system_scope:all) or (role:reader and "
            "domain_id:%(target.domain_id)s)"
        ),
    },
    "neutron": {
        "context_is_advsvc": "role:advsvc",
        "get_port": (
            "(rule:admin_only) or (rule:service_api) or role:reader and rule:network_owner or role:reader and "
            "project_id:%(project_id)s"
        ),
        "delete_port": (
            "(rule:admin_only) or (rule:service_api) or (service_roles:service and (role:member and "
            "rule:network_owner or role:member and project_id:%(project_id)s)) or (not rule:compute_device and "
            "not rule:baremetal_device and not rule:manila_device and (role:member and rule:network_owner or "
            "role:member and project_id:%(project_id)s))"
        ),
    },
}  # fmt: skip
